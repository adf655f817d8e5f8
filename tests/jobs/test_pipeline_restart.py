"""What a pipeline of two or three stages makes again after --restart, what it says after Ctrl-C, and names and paths
that YAML could misread."""

import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs import annotate, pipeline
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.stages.stage import StageOutput
from tests.support.interrupts import interrupt, interrupting_at, send_sigterm
from tests.support.paths import ROOT

ANSWER = '{"messages": [{"role": "user", "content": "a"}], "answer": "b c d.", "annotated": "b c d."}\n'


def section(source: Path | str) -> dict[str, Any]:
    return {
        "job": "annotate",
        "config": str(ROOT / "configs/annotate/alpaca-syntactic.yaml"),
        "set": {"data.source.path": str(source), "data.source.format": "auto"},
    }


def recipe(folder: Path, name: str = "tiny", stage: str = "a", **more: Any) -> Path:
    """A pipeline of one stage that annotates one answer, and ``more`` stages."""
    answers = folder / "answers.jsonl"
    answers.write_text('{"instruction": "a", "output": "b c d."}\n')
    stages = {stage: section(answers), **more}
    values = {"name": name, "output_dir": str(folder / "out"), "tracking": "disabled", "stages": stages}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(values))
    return path


def read(path: Path) -> tuple[Any, Any, Any]:
    config, steps = pipeline.read_recipe(Namespace(config=path, overrides=[], restart=None))
    return config, steps, pipeline.read_stages(config, steps)


def finish(output: StageOutput, version: int) -> None:
    (output.start() / "annotated-00000.jsonl").write_text(ANSWER)
    output.finish({}, f"v{version}")


def cut(work: Callable[..., Any], stage: str) -> Callable[..., Any]:
    """A function of ``annotate``, in which Ctrl-C comes at this stage."""

    def cut_work(config: Any, **options: Any) -> Any:
        if config.name == stage:
            interrupt()
        return work(config, **options)

    return cut_work


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The stages that were run, and whether they restarted; no worker annotates anything. Each is run by another
    version of the code, as where time passes between them."""
    stages = []
    versions = itertools.count()

    def run(config: Any, *, restart: bool = False, address: str | None = None) -> int:
        stages.append((config.name, restart))
        finish(annotate.stage(config, restart=restart), next(versions))
        return 0

    monkeypatch.setattr(annotate, "run", run)
    return stages


def test_a_restart_makes_again_what_depends_on_it_and_nothing_else(tmp_path, capsys, ran):
    config, steps, _ = read(recipe(tmp_path, b=section("@a"), c=section(tmp_path / "answers.jsonl")))
    pipeline.run(config, steps)
    ran.clear()
    pipeline.run(config, steps, restart="a")
    assert ran == [("a", True), ("b", True)]
    assert "c: unchanged" in capsys.readouterr().out


def test_a_restart_that_was_cut_goes_on_and_makes_again_what_depends_on_it(
    tmp_path, capsys, monkeypatch, ran
):
    config, steps, _ = read(recipe(tmp_path, b=section("@a")))
    pipeline.run(config, steps)

    def cut(config: Any, *, restart: bool = False, address: str | None = None) -> int:
        output = annotate.stage(config, restart=restart)
        work_dir = output.start()
        output.replace()  # as the first shard does
        (work_dir / "shard").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(annotate, "run", cut)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(config, steps, restart="a")
    assert "cut in a; the same command without --restart goes on there" in capsys.readouterr().err
    ran.clear()
    pipeline.run(config, steps)
    assert ran == [("a", False), ("b", True)]


@pytest.mark.parametrize("cut_at", ["a", "b", "c"])
def test_a_restart_that_was_cut_before_a_stage_began_makes_it_again(tmp_path, monkeypatch, ran, cut_at):
    config, steps, _ = read(recipe(tmp_path, b=section("@a"), c=section("@b")))
    pipeline.run(config, steps)
    with monkeypatch.context() as patch:
        patch.setattr(annotate, "run", cut(annotate.run, cut_at))
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(config, steps, restart="a")
    pipeline.run(config, steps)
    assert [name for name, _ in ran[3:]] == ["a", "b", "c"]
    pipeline.run(config, steps)
    assert len(ran) == 6


def test_a_restart_that_was_cut_before_its_stage_is_said_again(tmp_path, capsys, monkeypatch, ran):
    config, steps, _ = read(recipe(tmp_path, b=section("@a")))
    monkeypatch.setattr(pipeline, "print", interrupting_at("a: to run"), raising=False)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(config, steps, restart="b")
    assert capsys.readouterr().err == "tiny: cut in a; the same command goes on there\n"


@pytest.mark.parametrize(
    ("line", "place"),
    [("a: to run", "in a"), ("a: done", "after a"), ("b: to run", "in b"), ("b: done", "after b")],
)
def test_ctrl_c_at_any_line_says_in_what_stage_the_same_command_goes_on(
    tmp_path, capsys, monkeypatch, ran, line, place
):
    path = recipe(tmp_path, b=section("@a"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["pipeline", "--config", str(path)])
        patch.setattr(pipeline, "print", interrupting_at(line), raising=False)
        with pytest.raises(SystemExit) as ended:
            run_main(pipeline.main)
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"tiny: cut {place}; the same command goes on there\ninterrupted\n"
    assert pipeline.run(*read(path)[:2]) == 0


def test_sigterm_between_two_stages_says_in_what_stage_the_same_command_goes_on(
    tmp_path, capsys, monkeypatch, ran
):
    path = recipe(tmp_path, b=section("@a"))
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path)])
    monkeypatch.setattr(pipeline, "print", interrupting_at("a: done", send_sigterm), raising=False)
    with pytest.raises(SystemExit) as ended:
        run_main(pipeline.main)
    assert ended.value.code == 143
    assert capsys.readouterr().err == "tiny: cut after a; the same command goes on there\n"


@pytest.mark.parametrize(("stage", "place"), [("a", "before a"), ("b", "after a")])
def test_ctrl_c_while_a_stage_s_inputs_are_read_says_where_the_same_command_goes_on(
    tmp_path, capsys, monkeypatch, ran, stage, place
):
    config, steps, _ = read(recipe(tmp_path, b=section("@a")))
    with monkeypatch.context() as patch:
        patch.setattr(annotate, "stage", cut(annotate.stage, stage))
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(config, steps)
    assert capsys.readouterr().err == f"tiny: cut {place}; the same command goes on there\n"
    pipeline.run(config, steps)
    assert [name for name, _ in ran] == ["a", "b"]


def test_ctrl_c_while_a_manifest_is_written_cuts_its_stage(tmp_path, capsys, monkeypatch, ran):
    config, steps, _ = read(recipe(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("pasta.stages.stage.write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(config, steps)
    assert capsys.readouterr().err == "tiny: cut in a; the same command goes on there\n"
    pipeline.run(config, steps)
    assert "a: to run, from where it was cut" in capsys.readouterr().out


def test_an_earlier_stage_that_was_deleted_makes_nothing_else_again(tmp_path, ran):
    config, steps, _ = read(recipe(tmp_path, b=section("@a")))
    pipeline.run(config, steps)
    next((tmp_path / "out").glob("a-*")).rename(tmp_path / "elsewhere")
    ran.clear()
    pipeline.run(config, steps)
    assert ran == [("a", False)]


def test_nor_does_one_that_goes_on_from_unfinished_work(tmp_path, ran):
    """As a deleted model does, whose checkpoints are still there."""
    config, steps, _ = read(recipe(tmp_path, b=section("@a")))
    pipeline.run(config, steps)
    earlier = next((tmp_path / "out").glob("a-*"))
    work_dir = annotate.stage(replace(pipeline.read_stages(config, steps)["a"], output_dir=earlier)).work_dir
    earlier.rename(tmp_path / "elsewhere")
    work_dir.mkdir()
    (work_dir / "shard").touch()
    ran.clear()
    pipeline.run(config, steps)
    assert ran == [("a", False)]


def test_a_plan_says_what_a_restart_makes_again_and_deletes_nothing(tmp_path, capsys, monkeypatch, ran):
    path = recipe(tmp_path, b=section("@a"))
    pipeline.run(*read(path)[:2])
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path), "--dry-run", "--restart", "a"])
    assert pipeline.main() == 0
    assert capsys.readouterr().out.splitlines() == ["a: to run again", "b: to run, after a"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_restart_and_an_estimate_at_once_are_refused(tmp_path, monkeypatch):
    options = ["--config", str(recipe(tmp_path)), "--gpu-hours", "x", "--restart", "a"]
    monkeypatch.setattr(sys, "argv", ["pipeline", *options])
    with pytest.raises(UserError, match="--restart: has no effect with --gpu-hours"):
        pipeline.main()


@pytest.mark.parametrize("name", ["2026", "run #2", "try: two", "*a", "null"])
def test_a_pipeline_may_have_any_name(tmp_path, name):
    assert read(recipe(tmp_path, name))[2]["a"].tracking.group == name


@pytest.mark.parametrize("stage", ["1", "null", "1e3", "true"])
def test_a_stage_may_be_called_like_a_number(tmp_path, stage):
    assert read(recipe(tmp_path, stage=stage))[2][stage].name == stage


def test_outputs_may_lie_in_any_directory(tmp_path):
    folder = tmp_path / "a: b #1"
    folder.mkdir()
    assert read(recipe(folder))[2]["a"].output_dir.parent == folder / "out"


def test_a_mistake_in_what_a_stage_sets_names_the_stage(tmp_path):
    wrong = section("@a")
    wrong["set"]["data.shard_records"] = None
    with pytest.raises(UserError, match=r"^b: override 'data\.shard_records=null': data\.shard_records: "):
        read(recipe(tmp_path, b=wrong))


def test_a_place_of_checkpoints_that_cannot_be_written_is_told_before_the_first_stage(tmp_path):
    train = {"job": "sft", "config": str(ROOT / "configs/sft/atlas-pasta.yaml")}
    train["set"] = {"checkpoints": "file:///proc/bucket", "run_dir": str(tmp_path / "runs")}
    config, _, stages = read(recipe(tmp_path, b=train))
    with pytest.raises(UserError, match=r"^b: checkpoints: 'file:///proc/bucket' cannot be written"):
        pipeline.check_stage_directories(config, stages)
