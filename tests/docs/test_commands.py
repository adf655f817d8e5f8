"""Every command in README.md, CONTRIBUTING.md and docs/ is run here, or names what it needs; what is not run is read.

A block without a mark runs as it stands. ``# takes …`` runs too, and takes longer. ``# needs the service`` runs against
one service. Any other ``# needs …`` is not run, but its arguments and configurations are read.
"""

import importlib
import re
import runpy

import pytest

from jobs import submit
from pasta.config import load_config
from pasta.simulation.config import SimulateConfig
from pasta.stages.pipeline import PipelineConfig
from tests.support.guides import GUIDES, ROOT, blocks, shell, workplace
from tests.support.service import command

BLOCKS = [block for guide in GUIDES for block in blocks(guide)]
SERVICE = "needs the service"
#: What others have made. Whoever runs it knows it.
FOREIGN = {
    *("base64", "cat", "chmod", "curl", "export", "grep", "jq", "mkdir", "openssl", "sed"),
    *("docker", "kubectl", "pre-commit", "pytest", "ray", "serve", "wandb"),
}
COMMANDS = [
    pytest.param(words, id=f"{block.place} {' '.join(words)[:60]}")
    for block in BLOCKS
    if block.is_shell
    for words in block.commands()
]


def by_guide(chosen):
    """Parametrise by guide, those of them that have such blocks."""
    guides = [guide for guide in GUIDES if any(chosen(block) for block in blocks(guide))]
    return pytest.mark.parametrize("guide", guides, ids=lambda guide: guide.stem)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_of_a_language_that_is_tested(block):
    assert block.language in {"sh", "python", ""}, (
        "tests know sh and python; pictures and grammars have no language"
    )


def runs(block):
    return block.is_shell and not block.mark


@pytest.mark.slow
@pytest.mark.e2e
@by_guide(runs)
def test_the_commands_of_a_guide_run_in_their_order(guide, tmp_path):
    folder = workplace(tmp_path)
    for block in filter(runs, blocks(guide)):
        shell(block.text, folder)


def takes_longer(block):
    return block.is_shell and block.mark.startswith("takes ")


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
@by_guide(takes_longer)
def test_the_longer_commands_of_a_guide_run_after_those_before_them(guide, tmp_path):
    folder = workplace(tmp_path)
    chosen = [block for block in blocks(guide) if takes_longer(block) or runs(block)]
    for block in chosen[: 1 + max(n for n, block in enumerate(chosen) if takes_longer(block))]:
        shell(block.text, folder, timeout_s=900)


def is_snippet(block):
    return block.language == "python" and not block.mark


@pytest.mark.slow
@by_guide(is_snippet)
def test_the_snippets_of_a_guide_run_in_their_order(guide, tmp_path):
    file = tmp_path / "snippets.py"
    file.write_text("\n".join(block.text for block in filter(is_snippet, blocks(guide))))
    runpy.run_path(str(file))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """What ``make serve`` starts, on a free port."""
    log = tmp_path_factory.mktemp("service") / "log"
    with command("-m", "serve.run", "configs/serve/local.yaml", "--port", 0, log=log) as running:
        yield running.wait_for(r"^serving .* at (http://127\.0\.0\.1:\d+)/v1")[1]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.mark == SERVICE], ids=lambda block: block.place
)
def test_what_needs_the_service_runs_against_it(block, service, tmp_path):
    text = block.text.replace("http://127.0.0.1:8000", service)
    if block.is_shell:
        assert shell(text, workplace(tmp_path)) or list(tmp_path.glob("*.json"))
        return
    file = tmp_path / "snippet.py"
    file.write_text(text)
    runpy.run_path(str(file))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_has_arguments_that_can_be_read(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *rest = [word for word in words if not re.match(r"[A-Z_]+=", word)] or ["export"]
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {*rest} <= {*targets}
    elif program == "pasta":
        read_pasta(rest)
    elif program == "python":
        assert rest[0] in {"-m", "-c"}
        if rest[0] == "-m":
            read_module(rest[1], rest[2:])
    else:
        assert program in FOREIGN


def read_pasta(arguments):
    # The package has a function of the module's name.
    options = importlib.import_module("pasta.cli.main").parser().parse_args(arguments)
    if options.command == "simulate":
        load_config(options.config, SimulateConfig, options.overrides)


def read_module(module, arguments):
    assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    if module == "jobs.submit":
        options, rest = submit.parser().parse_known_args(arguments)
        if options.command in submit.JOBS and options.config is not None:
            read_job(f"jobs.{options.command}", ["--config", str(options.config), *rest])
    elif module == "jobs.benchmark" and arguments[:1] == ["serve"]:
        importlib.import_module("jobs.benchmark_serve").parser().parse_args(arguments[1:])
    elif module.startswith("jobs."):
        read_job(module, arguments)


def read_job(module, arguments):
    job = importlib.import_module(module)
    if not hasattr(job, "parser"):
        return
    options = job.parser().parse_args(arguments)
    if hasattr(options, "overrides"):
        load_config(options.config, getattr(job, "CONFIG", PipelineConfig), options.overrides)
