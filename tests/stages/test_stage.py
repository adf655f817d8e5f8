"""A stage's output is whole or not there, is made once, and is never mistaken for another's."""

import contextlib
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pasta.errors import UserError
from pasta.signals import Terminated
from pasta.stages.lock import sole_writer
from pasta.stages.run import check_apart, nothing_to_do, stage_run
from pasta.stages.stage import StageOutput, input_fingerprint, read_manifest, write_manifest
from pasta.tracking import Tracker, TrackingSection
from tests.support.interrupts import interrupt, send_sigterm


@dataclass(frozen=True)
class Config:
    seed: int = 0


@dataclass(frozen=True)
class JobConfig:
    output_dir: Path
    run_dir: Path
    name: str = "tiny"
    tracking: TrackingSection = field(default_factory=lambda: TrackingSection("disabled"))


def finished(directory: Path, seed: int = 0, inputs: dict[str, Path] | None = None) -> StageOutput:
    stage = StageOutput(directory, "sample", Config(seed), inputs or {})
    (stage.start() / "data.jsonl").write_text("{}\n")
    stage.finish({"records": 1}, "v1")
    return stage


def test_nothing_is_at_the_output_before_the_stage_is_finished(tmp_path):
    stage = StageOutput(tmp_path / "out", "sample", Config(), {})
    (stage.start() / "data.jsonl").write_text("{}\n")
    assert not (tmp_path / "out").exists()
    stage.finish({}, "v1")
    assert (tmp_path / "out" / "data.jsonl").read_text() == "{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_manifest_says_what_made_the_output(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("1")
    finished(tmp_path / "out", 7, {"data": source})
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert (manifest.stage, manifest.config, manifest.figures, manifest.code_version) == (
        "sample",
        {"seed": 7},
        {"records": 1},
        "v1",
    )
    assert manifest.inputs["data"]["fingerprint"] == input_fingerprint("data", source)


def test_the_same_stage_is_found_done(tmp_path):
    finished(tmp_path / "out")
    assert StageOutput(tmp_path / "out", "sample", Config(), {}).is_done


def test_unfinished_work_is_found_by_the_same_stage_alone(tmp_path):
    (StageOutput(tmp_path / "out", "sample", Config(), {}).start() / "shard-0").write_text("done")
    assert StageOutput(tmp_path / "out", "sample", Config(), {}).is_resumed
    assert not StageOutput(tmp_path / "out", "sample", Config(1), {}).is_resumed


def test_a_directory_with_another_configuration_is_refused_and_the_key_named(tmp_path):
    finished(tmp_path / "out", seed=1)
    with pytest.raises(UserError, match="seed 1 instead of 2"):
        StageOutput(tmp_path / "out", "sample", Config(2), {})


def test_where_the_output_goes_is_no_part_of_the_identity(tmp_path):
    @dataclass(frozen=True)
    class Placed:
        output_dir: Path

    one, other = (StageOutput(path, "sample", Placed(path), {}) for path in (tmp_path / "a", tmp_path / "b"))
    assert one.identity == other.identity


def test_a_digest_of_the_prompts_is_named_where_no_key_and_no_file_has_changed(tmp_path):
    """Who asks for more prompts reads ``prompts.count``."""
    source = tmp_path / "prompts.jsonl"
    source.write_text("1")

    def stage(count: int, prompt_ids: str, out: str = "other") -> StageOutput:
        config = {"prompts": {"count": count}, "prompt_ids": prompt_ids}
        return StageOutput(tmp_path / out, "evaluate", config, {"prompts.source": source})

    first = stage(1, "ab", "out")
    first.start()
    made = first.finish({}, "v1")
    assert stage(2, "cd").difference(made) == "prompts.count 1 instead of 2"
    assert stage(1, "cd").difference(made) == "prompt_ids 'ab' instead of 'cd'"
    source.write_text("2")
    assert stage(1, "cd").difference(made) == f"another content of prompts.source ({source})"


def test_a_changed_input_is_named(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("1")
    finished(tmp_path / "out", inputs={"data": source})
    source.write_text("2")
    with pytest.raises(UserError, match=r"another content of data \(.*in.jsonl\)"):
        StageOutput(tmp_path / "out", "sample", Config(), {"data": source})


def test_of_an_input_that_was_moved_and_edited_the_content_is_said_to_differ(
    tmp_path,
):
    """Its path was named, though no output depends on where its inputs lie."""

    def stage(directory: Path, seed: int = 0) -> StageOutput:
        model = directory / "model.json"
        config = Methods({"a": Method(str(model))}, seed)
        return StageOutput(directory / "out", "sample", config, {"methods.a.model": model})

    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "model.json").write_text("1")
    stage(before).start()
    made = stage(before).finish({}, "v1")
    before.rename(after)
    assert stage(after).is_done
    with pytest.raises(UserError, match="with seed 0 instead of 1;"):
        stage(after, seed=1)
    (after / "model.json").write_text("2")
    with pytest.raises(UserError) as caught:
        stage(after)
    told = f"another content of methods.a.model ({before}/model.json instead of {after}/model.json)"
    assert f"with {told};" in str(caught.value)
    with pytest.raises(UserError, match="with seed 0 instead of 1;"):
        stage(after, seed=1)
    hub = StageOutput(
        tmp_path / "hub", "sample", Methods({"a": Method("org/b")}), {"methods.a.model": "org/b"}
    )
    assert hub.difference(made).endswith("model.json' instead of 'org/b'")


def test_restart_forgets_finished_and_unfinished_work(tmp_path):
    finished(tmp_path / "out", seed=1)
    stage = StageOutput(tmp_path / "out", "sample", Config(2), {}, restart=True)
    assert not stage.is_done
    stage.start()
    stage.replace()
    assert not (tmp_path / "out").exists()


def test_a_link_is_refused_before_any_work(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    with pytest.raises(UserError, match=r"^output_dir: .*/out: is a link, "):
        StageOutput(tmp_path / "out", "sample", Config(), {})
    finished(tmp_path / "disk")
    assert StageOutput(tmp_path / "out", "sample", Config(), {}).is_done
    with pytest.raises(UserError, match=r"^output_dir: .*/out: is a link, "):
        StageOutput(tmp_path / "out", "sample", Config(), {}, restart=True)


def test_a_directory_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(UserError, match="is no finished stage"):
            StageOutput(tmp_path / "out", "sample", Config(), {}, restart=restart)


def test_a_stage_knows_its_input_stage_by_identity(tmp_path):
    first = finished(tmp_path / "first")
    assert input_fingerprint("samples", tmp_path / "first") == first.identity


def test_an_input_that_was_made_again_since_is_named_where_nothing_is_to_do(tmp_path, capsys):
    finished(tmp_path / "first")
    stage = finished(
        tmp_path / "second", inputs={"data": tmp_path / "first", "file": tmp_path / "first/data.jsonl"}
    )
    assert nothing_to_do("tiny", tmp_path / "second", stage, "makes it again")
    assert len(capsys.readouterr().out.splitlines()) == 1
    manifest = read_manifest(tmp_path / "first")
    assert manifest is not None
    write_manifest(tmp_path / "first", replace(manifest, finished="9999-01-01T00:00:00+00:00"))
    assert nothing_to_do("tiny", tmp_path / "second", stage, "makes it again")
    _, said = capsys.readouterr().out.splitlines()
    assert said == f"tiny: data ({tmp_path / 'first'}) was made again since; --restart reads it"


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(UserError, match=r"data: /.*nowhere: no such file"):
        StageOutput(tmp_path / "out", "sample", Config(), {"data": tmp_path / "nowhere"})


def test_restart_deletes_nothing_before_the_stage_starts(tmp_path):
    finished(tmp_path / "out", seed=1)
    StageOutput(tmp_path / "out", "sample", Config(2), {}, restart=True)
    assert (tmp_path / "out" / "data.jsonl").exists()


def test_restart_begins_unfinished_work_anew(tmp_path):
    (StageOutput(tmp_path / "out", "sample", Config(), {}).start() / "shard-0").write_text("done")
    stage = StageOutput(tmp_path / "out", "sample", Config(), {}, restart=True)
    assert not stage.is_resumed
    assert not any(stage.start().iterdir())


@pytest.mark.parametrize("restart", [False, True])
def test_another_stage_s_output_is_never_replaced(tmp_path, restart):
    finished(tmp_path / "out")
    with pytest.raises(UserError, match=r"holds stage 'sample', not 'score'; name another directory$"):
        StageOutput(tmp_path / "out", "score", Config(), {}, restart=restart)
    assert (tmp_path / "out" / "data.jsonl").exists()


def test_a_directory_that_somebody_fills_meanwhile_is_not_replaced(tmp_path):
    stage = StageOutput(tmp_path / "out", "sample", Config(), {})
    stage.start()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"cannot be written \(Directory not empty\)"):
        stage.finish({}, "v1")


def test_what_another_run_has_finished_meanwhile_is_not_made_again(tmp_path):
    late = StageOutput(tmp_path / "out", "sample", Config(), {})
    finished(tmp_path / "out")
    with pytest.raises(UserError, match=r"^output_dir: .*/out: another run has finished it meanwhile"):
        late.start()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_runs_do_not_write_to_one_directory(tmp_path):
    refused = pytest.raises(UserError, match=r"output_dir: .*out: another run is writing there")
    with sole_writer(tmp_path / "out"), refused, sole_writer(tmp_path / "out"):
        pass


@pytest.mark.parametrize("named", ["linked", "disk/out/..", "parent/disk"])
def test_a_directory_is_kept_to_one_process_by_whatever_path_it_is_named(tmp_path, named):
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "parent").symlink_to(tmp_path)
    refused = pytest.raises(UserError, match=r"output_dir: .*: another run is writing there")
    with sole_writer(tmp_path / "disk"), refused, sole_writer(tmp_path / named):
        pass


@pytest.mark.parametrize(("end", "ended"), [(interrupt, KeyboardInterrupt), (send_sigterm, Terminated)])
@pytest.mark.parametrize("moment", ["the tracker starts", "the work is done", "the tracker ends"])
def test_ctrl_c_and_sigterm_at_any_moment_of_a_stage_say_once_where_it_goes_on(
    tmp_path, capsys, monkeypatch, moment, end, ended
):
    tracker = Tracker()
    monkeypatch.setattr("pasta.stages.run.start_tracker", lambda *_, **__: tracker)
    if moment == "the tracker starts":
        monkeypatch.setattr("pasta.stages.run.start_tracker", lambda *_, **__: end())
    if moment == "the tracker ends":
        monkeypatch.setattr(tracker, "finish", end)
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    output = StageOutput(config.output_dir, "sample", Config(), {})

    def run() -> None:
        with stage_run(config, output, resumes="after the last shard"):
            if moment == "the work is done":
                end()

    with pytest.raises(ended):
        run()
    assert capsys.readouterr().err == "tiny: the same command goes on after the last shard\n"


@pytest.mark.parametrize("begun", [False, True])
def test_after_ctrl_c_a_restart_goes_on_without_the_option_once_it_has_begun(
    tmp_path, capsys, monkeypatch, begun
):
    """The same command would forget what the restart has done: replies that a teacher was paid for, too."""
    monkeypatch.setattr("pasta.stages.run.start_tracker", lambda *_, **__: Tracker())
    if not begun:
        monkeypatch.setattr("pasta.stages.run.sole_writer", interrupt)
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    output = StageOutput(config.output_dir, "sample", Config(), {}, restart=True)
    with pytest.raises(KeyboardInterrupt), stage_run(config, output, resumes="after the last shard"):
        interrupt()
    without = " without --restart" if begun else ""
    assert capsys.readouterr().err == f"tiny: the same command{without} goes on after the last shard\n"


def test_work_that_another_configuration_has_left_unfinished_is_named_once(tmp_path, capsys, monkeypatch):
    """A judge that is added to an evaluation under way would otherwise begin it anew without a word."""
    monkeypatch.setattr("pasta.stages.run.start_tracker", lambda *_, **__: Tracker())
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    (StageOutput(tmp_path / "out.2", "sample", Config(), {}).start() / "shard-0").touch()
    left = StageOutput(config.output_dir, "sample", Config(), {}).start()

    def run(seed: int) -> str:
        output = StageOutput(config.output_dir, "sample", Config(seed), {})
        with stage_run(config, output, resumes="") as job:
            (job.work_dir / "shard-0").touch()
        return capsys.readouterr().out

    assert run(1) == ""  # the other has done nothing
    (left / "shard-0").touch()
    assert run(1) == ""
    said = "tiny: starts from the beginning; unfinished work with another configuration or other inputs stays in "
    assert run(2).startswith(f"{said}{tmp_path}/.out.")
    assert run(2) == ""
    assert run(3).endswith(".partial (and 2 more)\n")


def test_a_run_that_has_ended_leaves_no_lock(tmp_path):
    for _ in range(2):
        with sole_writer(tmp_path / "out"):
            pass
    assert not [*tmp_path.iterdir()]


def test_a_run_that_was_killed_keeps_nobody_out(tmp_path):
    (tmp_path / ".out.lock").touch()
    with sole_writer(tmp_path / "out"):
        pass


@pytest.mark.parametrize("inside", ["out", "out/run", "out/../out/run", "linked/out/run"])
def test_a_run_directory_in_the_output_is_refused(tmp_path, inside):
    (tmp_path / "linked").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"run_dir: .*lies in output_dir"):
        check_apart(tmp_path / inside, tmp_path / "out", "run_dir")


def test_a_run_directory_beside_the_output_is_fine(tmp_path):
    check_apart(tmp_path / "out2", tmp_path / "out", "run_dir")


def test_an_output_within_an_input_is_refused_where_it_would_change_what_is_read(tmp_path):
    model, made = tmp_path / "model", tmp_path / "made"
    model.mkdir()
    (model / "weights").write_text("1")
    with pytest.raises(UserError, match=r"output_dir: .*/model/out: lies in methods.a.model \(.*/model\)"):
        StageOutput(model / "out", "evaluate", Config(), {"methods.a.model": model})
    (tmp_path / "linked").symlink_to(model)
    for output_dir, source in ((tmp_path / "linked" / "out", model), (model / "out", tmp_path / "linked")):
        with pytest.raises(UserError, match=r"output_dir: .*/out: lies in methods.a.model"):
            StageOutput(output_dir, "evaluate", Config(), {"methods.a.model": source})
    config = JobConfig(tmp_path / "out", model / "runs", tracking=TrackingSection("offline"))
    output = StageOutput(config.output_dir, "evaluate", Config(), {"methods.a.model": model})
    with (
        pytest.raises(UserError, match=r"run_dir: .*/model/runs/.*: lies in methods.a.model"),
        stage_run(config, output, resumes="here"),
    ):
        pass
    finished(made)  # known by its manifest
    StageOutput(made / "out", "evaluate", Config(), {"samples": made})


@dataclass(frozen=True)
class Method:
    model: str


@dataclass(frozen=True)
class Methods:
    methods: dict[str, Method]
    seed: int = 0


def test_an_output_is_found_as_done_where_its_inputs_were_moved(tmp_path):
    """A pipeline's directory that is copied to another disk, or named by a link, was made all over again."""

    def stage(model: Path, seed: int = 0) -> StageOutput:
        config = Methods({"a.b": Method(str(model))}, seed)
        return StageOutput(tmp_path / "out", "sample", config, {"methods.a.b.model": model})

    made = finished(tmp_path / "model").output_dir
    first = stage(made)
    first.start()
    first.finish({}, "v1")
    moved = made.rename(tmp_path / "moved")
    assert stage(moved).is_done
    assert not stage(moved).newer_inputs(tmp_path / "out")
    with pytest.raises(UserError, match="holds stage 'sample' with seed 0 instead of 1;"):
        stage(moved, seed=1)
    shutil.copytree(moved, made)
    assert stage(moved).is_done
    # The same configuration once more, maybe by other code: another model, though it has the same identity.
    write_manifest(made, replace(read_manifest(made), finished="9999-01-01T00:00:00+00:00"))
    assert stage(made).newer_inputs(tmp_path / "out")
    with pytest.raises(UserError, match=r"with methods.a.b.model '.*/model' instead of '.*/moved';"):
        stage(moved)
    other = finished(tmp_path / "other", seed=5).output_dir
    with pytest.raises(
        UserError, match=r"with another content of methods.a.b.model \(.*/model instead of .*/other\);"
    ):
        stage(other)


def test_a_model_at_another_path_that_is_known_by_size_and_time_is_another(tmp_path, monkeypatch):
    """Models in the layers of an image may have equal sizes and times."""
    monkeypatch.setattr("pasta.stages.stage._HASHED_BYTES", 0)
    for name, weights in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(weights)
        os.utime(tmp_path / name / "weights", (0, 0))

    def stage(model: Path) -> StageOutput:
        config = Methods({"pasta": Method(str(model))})
        return StageOutput(tmp_path / "out", "sample", config, {"methods.pasta.model": model})

    stage(tmp_path / "a").start()
    stage(tmp_path / "a").finish({}, "v1")
    assert stage(tmp_path / "a").is_done
    with pytest.raises(UserError, match=r"with methods.pasta.model '.*/a' instead of '.*/b'"):
        stage(tmp_path / "b")


@pytest.mark.parametrize("ends", ["it fails", "it is replaced", "it is finished"])
def test_a_restart_may_keep_the_earlier_output_until_there_is_something_new(tmp_path, monkeypatch, ends):
    monkeypatch.setattr("pasta.stages.run.start_tracker", lambda *_, **__: Tracker())
    finished(tmp_path / "out", seed=1)
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    output = StageOutput(tmp_path / "out", "sample", Config(2), {}, restart=True)
    with contextlib.suppress(UserError), stage_run(config, output, resumes="") as job:
        assert output.restarts
        if ends == "it fails":
            raise UserError("the model cannot be loaded")
        if ends == "it is replaced":
            output.replace()
            assert not output.restarts
        if ends == "it is finished":
            job.finish("data", {}, "v1")
    manifest = read_manifest(tmp_path / "out")
    expected = {"it fails": 1, "it is replaced": None, "it is finished": 2}[ends]
    assert (manifest and manifest.config["seed"]) == expected


def test_a_restart_is_tracked_as_a_run_of_its_own(tmp_path, monkeypatch):
    """And one that goes on as the run that it goes on with."""
    began = []
    monkeypatch.setattr(
        "pasta.stages.run.start_tracker", lambda _, run_dir, **__: began.append(run_dir) or Tracker()
    )
    monkeypatch.setattr("pasta.stages.run.forget_run", lambda run_dir: began.append("another"))
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    for restart in (False, False, True):
        output = StageOutput(config.output_dir, "sample", Config(), {}, restart=restart)
        with stage_run(config, output, resumes=""):
            pass
    run_dir = tmp_path / "runs" / f"tiny-{output.identity[:8]}"
    assert began == [run_dir, run_dir, "another", run_dir]


@pytest.mark.parametrize("how", ["another model", "the same stage made again", "moved away", "not at all"])
def test_an_input_that_changed_while_a_stage_ran_is_told_at_its_end(tmp_path, capsys, how):
    """A worker that starts late, as in a dead one's place, reads what is there by then."""
    model = tmp_path / "model"
    finished(model)
    config = JobConfig(tmp_path / "out", tmp_path / "runs")
    output = StageOutput(config.output_dir, "sample", Config(), {"model": model})
    with stage_run(config, output, resumes="") as job:
        if how == "another model":
            shutil.rmtree(model)
            finished(model, seed=1)
        elif how == "the same stage made again":
            manifest = read_manifest(model)
            assert manifest is not None
            write_manifest(model, replace(manifest, finished="2999-01-01T00:00:00+00:00"))
        elif how == "moved away":
            model.rename(tmp_path / "elsewhere")
        job.finish("samples", {}, "v1")
    said = f"tiny: model ({model}) has changed since this run began; --restart reads it"
    assert (said in capsys.readouterr().out) is (how in ("another model", "the same stage made again"))
