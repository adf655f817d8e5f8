"""Every command in README.md, CONTRIBUTING.md and docs/ can be read: its arguments and its configurations.

Those that name nothing that they need run too (tests/e2e/test_guides.py).
"""

import importlib
import re

import pytest

from jobs import submit
from pasta.config import load_config
from pasta.simulation.config import SimulateConfig
from pasta.stages.pipeline import PipelineConfig
from tests.support.guides import GUIDES, ROOT, blocks

BLOCKS = [block for guide in GUIDES for block in blocks(guide)]
#: What others have made. Whoever runs it knows it.
FOREIGN = {
    *(".", "base64", "cat", "chmod", "curl", "export", "grep", "jq", "mkdir", "openssl", "sed"),
    *("docker", "kubectl", "lm_eval", "pre-commit", "pytest", "ray", "serve", "vllm", "wandb"),
}
COMMANDS = [
    pytest.param(words, id=f"{block.place} {' '.join(words)[:60]}")
    for block in BLOCKS
    if block.is_shell
    for words in block.commands()
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_of_a_language_that_is_tested(block):
    assert block.language in {"sh", "python", ""}, (
        "tests know sh and python; pictures and grammars have no language"
    )


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
    options = importlib.import_module("pasta.cli.commands").parser().parse_args(arguments)
    if options.command == "simulate":
        load_config(options.config, SimulateConfig, options.overrides)


def read_module(module, arguments):
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    if module == "jobs.submit":
        options, rest = submit.parser().parse_known_args(arguments)
        if options.command in submit.JOBS and options.config is not None:
            read_job(f"jobs.{options.command}", ["--config", str(options.config), *rest])
    elif module == "jobs.benchmark" and arguments[:1] and arguments[0] in {"serve", "peers", "people"}:
        importlib.import_module(f"jobs.benchmark_{arguments[0]}").parser().parse_args(arguments[1:])
    elif module == "serve":
        importlib.import_module("serve.__main__").parser().parse_args(arguments)
    elif module.startswith("jobs."):
        read_job(module, arguments)


def read_job(module, arguments):
    job = importlib.import_module(module)
    if not hasattr(job, "parser"):
        return
    options = job.parser().parse_args(arguments)
    if hasattr(options, "overrides"):
        load_config(options.config, getattr(job, "CONFIG", PipelineConfig), options.overrides)
