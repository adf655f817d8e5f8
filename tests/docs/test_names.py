"""What README.md and docs/ name is there: links, files, modules, keys of configurations, figures, metrics."""

import dataclasses
import importlib
import json
import re
import types
import typing

import pytest
from pydantic import BaseModel

from pasta.simulation.config import SimulateConfig
from pasta.stages.pipeline import PipelineConfig
from pasta.training.callbacks import LOGGED
from serve.config import ServeConfig
from tests.support.guides import GUIDES, ROOT, prose
from tests.support.metrics import METRICS, exported

#: What is measured names files too; its commands are those that were run.
DOCUMENTS = [
    *GUIDES,
    ROOT / "BENCHMARKS.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs/notes").glob("*.md")),
]
WIDTH = 120

JOBS = ("annotate", "sft", "sample", "score", "preference", "rl", "evaluate")
FILE = re.compile(r"(?<![\w/.-])((?:configs|docker|docs|jobs|platform|serve|tests)/[\w./*-]*[\w*])(?!…)")
#: Of whoever follows a guide.
MADE = re.compile(r"docker/secrets|jobs/NAME|serve/.*\.log|(api_)?keys\.yaml|mine\.yaml")
by_guide = pytest.mark.parametrize("guide", DOCUMENTS, ids=lambda guide: guide.stem)


def slug(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@by_guide
def test_links_lead_somewhere(guide):
    for target in re.findall(r"\]\(([^)\s]+)\)", guide.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = guide.parent / path if path else guide
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), target


@by_guide
def test_prose_has_one_width(guide):
    for line in prose(guide).splitlines():
        assert len(line) <= WIDTH or line.startswith("|"), line


@by_guide
def test_files_are_there(guide):
    for name in FILE.findall(guide.read_text()):
        if MADE.match(name):
            continue
        there = list(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()
        assert there or (ROOT / "platform/pasta" / name).exists(), name


@by_guide
def test_files_of_the_library_are_there(guide):
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|yaml))`", prose(guide)):
        if not MADE.match(name):
            assert any(
                (ROOT / folder / name).exists() for folder in (".", "platform/pasta", "docker/kuberay")
            ), name


@by_guide
def test_modules_are_there(guide):
    for module in re.findall(r"python -m ((?:jobs|serve)\.[\w.]*\w)", guide.read_text()):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists() or module == "jobs.NAME", module


def test_the_readme_is_read_in_one_go():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_guide_is_on_the_map():
    readme = (ROOT / "README.md").read_text()
    for guide in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{guide.name})" in readme, guide.name
    benchmarks = (ROOT / "BENCHMARKS.md").read_text()
    for note in (ROOT / "docs/notes").glob("*.md"):
        assert f"(docs/notes/{note.name})" in benchmarks, note.name


def test_every_package_is_in_the_structure():
    structure = (ROOT / "docs/structure.md").read_text()
    for folder in (ROOT / "platform/pasta", ROOT / "serve"):
        for package in folder.glob("*/__init__.py"):
            assert f"`{package.parent.relative_to(ROOT)}/`" in structure, package


def keys(kind, prefix=""):
    """Every key below a configuration's class, with dots between."""
    for option in (
        typing.get_args(kind) if isinstance(kind, types.UnionType | typing._UnionGenericAlias) else (kind,)
    ):
        if dataclasses.is_dataclass(option) or (isinstance(option, type) and issubclass(option, BaseModel)):
            for name, hint in typing.get_type_hints(option).items():
                yield f"{prefix}{name}"
                yield from keys(hint, f"{prefix}{name}.")


KEYS = {
    key
    for config in (
        *(importlib.import_module(f"jobs.{job}").CONFIG for job in JOBS),
        PipelineConfig,
        SimulateConfig,
        ServeConfig,
    )
    for key in keys(config)
}
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}


@by_guide
def test_keys_are_those_of_configurations(guide):
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?::[^`]*)?`", prose(guide)):
        section, _, rest = name.partition(".")
        if section in SECTIONS and not rest.endswith(("py", "yaml", "md", "json", "jsonl", "safetensors")):
            # A name that an answer or a deployment has is told from a key by its being none of a section.
            assert name in KEYS, name


def test_the_keys_of_configurations_are_known():
    assert {"data.annotator", "engine.num_slots", "decoder.lane_knee", "sizing.goals.total_p95_s"} <= KEYS
    assert "data.teacher.endpoint.api_key_env" in KEYS


def test_figures_and_metrics_of_the_dashboards_are_recorded():
    text = (ROOT / "docs/dashboards.md").read_text()
    metrics = re.findall(r"`(pasta_\w+)`", text)
    assert metrics
    assert {*metrics} <= {*METRICS}
    tracked = {*LOGGED.values(), "train/tokens_per_second", "eval/examples", "rl/examples"}
    figures = re.findall(r"`((?:train|eval|rl)/\w+)`", text)
    assert figures
    assert {*figures} <= tracked


def board() -> dict[tuple[str, str], set[str]]:
    """The metrics of each panel of the Grafana board, by its row and title."""
    found, row = {}, ""
    for panel in json.loads((ROOT / "docker/grafana/pasta.json").read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            queries = " ".join(target["expr"] for target in panel["targets"])
            asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bray_\w+", queries)}
            found[row, panel["title"]] = {each.name for each in METRICS.values() if exported(each) in asked}
    return found


def test_the_table_of_panels_is_the_board():
    told, row = {}, ""
    text = (ROOT / "docs/dashboards.md").read_text()
    for line in text[text.index("| row | panel |") :].split("\n\n")[0].splitlines()[2:]:
        _, first, panels, metrics, *_ = (cell.strip() for cell in line.split("|"))
        row = first or row
        for panel in panels.split(", "):
            told[row, panel] = {*re.findall(r"`(\w+)`", metrics)}
    shown = board()
    assert told.keys() == shown.keys()
    assert {panel: names for panel, names in shown.items() if not names <= told[panel]} == {}
