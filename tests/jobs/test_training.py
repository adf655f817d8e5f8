"""What the training jobs hand to Ray Train."""

import contextlib
import dataclasses
import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from jobs import preference, sft, training
from pasta.config import parse_config, to_dict
from pasta.engine.head_files import SETTINGS, WEIGHTS
from pasta.errors import CutShort, UserError
from pasta.stages.lock import sole_writer
from pasta.stages.records import write_json
from pasta.stages.stage import Stage, write_manifest
from pasta.stages.workers import WorkersSection
from pasta.training.config import SftConfig
from pasta.training.heads import HeadsStage
from pasta.training.run import RunContext, TrainingStage
from pasta.training.sft import train
from tests.support.interrupts import interrupt, interrupting_at
from tests.support.paths import ROOT
from tests.training.pair_runs import preference_dict, save_tiny_model
from tests.training.runs import as_earlier, sft_config, sft_dict


def cannot_save(config: SftConfig, context: RunContext) -> None:
    """A worker's function: what became of a model that has diverged."""
    with (context.work_dir / "tries").open("a") as file:
        file.write("tried\n")
    raise UserError("the trained model: w holds nan; expected finite numbers")


def finds_no_room(config: SftConfig, context: RunContext) -> None:
    """A worker's function: what became of a disk that is full."""
    with (context.work_dir / "tries").open("a") as file:
        file.write("tried\n")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("work", "kind", "says"),
    [
        (cannot_save, UserError, "the trained model: w holds nan; expected finite numbers$"),
        (finds_no_room, CutShort, "run_dir: .*: no room is left on its disk "),
    ],
)
def test_what_another_try_would_not_change_ends_the_job_at_once_in_one_line(
    tmp_path: Path, work: training.Train, kind: type[UserError], says: str
) -> None:
    config = sft_config(tmp_path)
    stage = sft.stage(config)
    assert config.workers.max_failures > 0
    with pytest.raises(UserError, match=f"^{says}") as raised:
        training.fit(work, config, stage, data_dir=tmp_path, address=None)
    assert type(raised.value) is kind
    assert len((stage.run_dir / "tries").read_text().split()) <= config.workers.num_workers


def test_the_controller_that_unpickles_the_settings_imports_nothing_that_training_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: dict[str, Any] = {}

    class Trainer:
        def __init__(self, worker: Any, **options: Any) -> None:
            handed.update(options["train_loop_config"])

        def _create_default_callbacks(self) -> list[Any]:
            return []

        def _initialize_and_run_controller(self) -> None: ...

        def fit(self) -> None: ...

    monkeypatch.setattr(training, "ray_cluster", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    config = sft_config(tmp_path)
    training.fit(train, config, sft.stage(config), data_dir=tmp_path, address=None)
    heavy = "{'torch', 'transformers', 'trl', 'datasets'}"
    unpickle = f"import pickle, sys; pickle.load(sys.stdin.buffer); print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", unpickle],
        input=pickle.dumps(handed),
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"set()\n"
    assert pickle.loads(handed["job"])[0] is train


def test_the_death_of_ray_train_s_controller_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Trainer:
        def __init__(self, *_: Any, **options: Any) -> None: ...

        def _create_default_callbacks(self) -> list[Any]:
            return []

        def _initialize_and_run_controller(self) -> None: ...

        def fit(self) -> None:
            raise ActorDiedError

    monkeypatch.setattr("pasta.training.sft.prepare", lambda *_, **__: Prepared())
    monkeypatch.setattr(training, "ray_cluster", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    for restart, without in ((False, ""), (True, " without --restart")):
        with pytest.raises(UserError) as error:
            sft.run(sft_config(tmp_path), restart=restart)
        assert str(error.value) == (
            "Ray Train's controller died (The actor died unexpectedly before finishing this task); the same "
            f"command{without} goes on from the last checkpoint"
        )
    assert "goes on" not in capsys.readouterr().err


def test_two_runs_do_not_train_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ray_cluster", lambda *_: pytest.fail("a worker was started"))
    config = sft_config(tmp_path)
    stage = sft.stage(config, restart=True)
    stage.run_dir.mkdir(parents=True)
    refused = pytest.raises(UserError, match=r"^output_dir: .*: another run is writing there")
    with sole_writer(config.output_dir), refused:
        training.fit(train, config, stage, data_dir=tmp_path, address=None)
    assert stage.run_dir.exists(), "the other run's"
    refused = pytest.raises(UserError, match=r"^run_dir: .*: another run is writing there")
    with sole_writer(stage.run_dir), refused:
        training.fit(train, config, stage, data_dir=tmp_path, address=None)
    assert stage.run_dir.exists(), "the other run's"


class Prepared(SimpleNamespace):
    """Data of no documents, or of no pairs."""

    path = Path("data")
    reused = False

    def __getattr__(self, name: str) -> int:
        return 0


@pytest.mark.parametrize("line", ["data made", "run directory"])
@pytest.mark.parametrize("job", [sft, preference])
def test_ctrl_c_at_any_line_before_the_first_step_says_once_how_to_go_on(
    job: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "ray_cluster", lambda *_: pytest.fail("a worker was started"))
    monkeypatch.setattr(
        f"pasta.training.{job.__name__.removeprefix('jobs.')}.prepare", lambda *_, **__: Prepared()
    )
    for module in (job, training):
        monkeypatch.setattr(module, "print", interrupting_at(line), raising=False)
    values = sft_dict(tmp_path) if job is sft else preference_dict(tmp_path)
    capsys.readouterr()  # the progress bar of the model that was saved
    with pytest.raises(KeyboardInterrupt):
        job.run(parse_config(values, job.CONFIG, "tiny.yaml"))
    assert capsys.readouterr().err == "tiny: the same command goes on from the last checkpoint\n"
    # A restart has begun when nothing of the run before is left.
    with pytest.raises(KeyboardInterrupt):
        job.run(parse_config(values, job.CONFIG, "tiny.yaml"), restart=True)
    assert capsys.readouterr().err == "tiny: the same command goes on from the last checkpoint\n"
    monkeypatch.setattr(job, "print", print, raising=False)
    monkeypatch.setattr(training, "print", print, raising=False)
    monkeypatch.setattr(training, "_fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.run(parse_config(values, job.CONFIG, "tiny.yaml"), restart=True)
    assert (
        capsys.readouterr().err
        == "tiny: the same command without --restart goes on from the last checkpoint\n"
    )


def test_a_restart_that_was_cut_is_not_done_though_the_model_before_is_there(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    finish(sft.stage(config))
    assert sft.stage(config).is_done
    stops_being_done_at_the_first_checkpoint(config, tmp_path)


def values_of(directory: Path, *, heads: bool) -> dict[str, Any]:
    """The configuration of a run that trains a model, or draft heads beside one."""
    values = sft_dict(directory)
    if heads:
        values |= {"draft_heads": {"depth": 2, "width": 16}}
        values["model"] = {"init_from": str(save_tiny_model(Path(values["output_dir"])))}
    return values


def finish(stage: TrainingStage, version: str = "v1") -> None:
    """Leave what a finished run leaves: draft heads, or a model with its manifest."""
    stage.output_dir.mkdir(exist_ok=True)
    if isinstance(stage, HeadsStage):
        made = {"identity": stage.identity, "answers": stage.answers, "code_version": version}
        write_json(stage.output_dir / SETTINGS, made)
        (stage.output_dir / WEIGHTS).touch()
    else:
        write_manifest(stage.output_dir, stage.to_manifest({}, version))
        (stage.output_dir / "model.safetensors").touch()


@pytest.mark.parametrize("heads", [False, True])
def test_what_has_lost_its_weights_is_not_done(tmp_path: Path, heads: bool) -> None:
    """Nothing was left to do, said the command, and the next one found no weights."""
    values = values_of(tmp_path, heads=heads)
    config = parse_config(values, SftConfig, "tiny.yaml")
    finish(sft.stage(config))
    assert sft.stage(config).is_done
    (config.output_dir / (WEIGHTS if heads else "model.safetensors")).unlink()
    assert not sft.stage(config).is_done


@pytest.mark.slow
def test_a_new_model_without_the_draft_heads_of_the_one_before_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers came more slowly, and nothing had said why."""
    config = sft_config(tmp_path)
    monkeypatch.setattr(training, "_fit", lambda *_: (config.output_dir / WEIGHTS).unlink())
    write_json(config.output_dir / "model_card.json", {})
    (config.output_dir / WEIGHTS).touch()
    sft.run(config)
    assert "the draft heads there were of the model before, and are gone with it" in capsys.readouterr().out


def stops_being_done_at_the_first_checkpoint(config: SftConfig, directory: Path) -> None:
    """The model before passes for the run's until this one has something to go on from; a worker says when."""
    stage = sft.stage(config, restart=True)
    assert stage.restarts
    stage.start(directory)
    assert stage.restarts
    assert sft.stage(config).is_done
    on_a_worker = pickle.loads(pickle.dumps(stage))
    on_a_worker.replace()
    assert not stage.restarts
    assert not sft.stage(config).is_done
    # The new model is not replaced by a checkpoint that follows it.
    finish(sft.stage(config, restart=True), "v2")
    stage.replace()
    assert sft.stage(config).is_done
    assert not stage.restarts


def test_a_restart_of_draft_heads_that_was_cut_is_not_done_either(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "start")
    values = sft_dict(tmp_path) | {"output_dir": str(model), "draft_heads": {"depth": 2, "width": 16}}
    values["model"] = {"init_from": str(model)}
    config = parse_config(values, SftConfig, "tiny.yaml")
    finish(sft.stage(config))
    assert sft.stage(config).is_done
    stops_being_done_at_the_first_checkpoint(config, tmp_path)


def annotated_by_a_stage(values: dict[str, Any], directory: Path) -> Path:
    """Make the file of answers in ``values`` that of an annotate stage in ``directory``; returns where it is now."""
    directory.mkdir()
    shard = directory / "annotated-00000.jsonl"
    Path(values["data"]["source"]).rename(shard)
    write_manifest(directory, Stage("annotate", {}, {}).to_manifest({}, "v1"))
    values["data"]["source"] = str(directory)
    return shard


@pytest.mark.slow
def test_a_run_that_was_cut_does_not_go_on_with_data_that_were_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher answers differently the second time, and its stage has the identity that it had."""
    monkeypatch.setattr(training, "_fit", lambda *_: None)
    values = sft_dict(tmp_path)
    shard = annotated_by_a_stage(values, tmp_path / "annotated")
    config = parse_config(values, SftConfig, "tiny.yaml")
    sft.run(config)
    sft.run(config)
    before = sft.stage(config).identity
    shard.write_text("\n".join(shard.read_text().splitlines()[1:]) + "\n")
    assert sft.stage(config).identity == before
    with pytest.raises(UserError, match=r"^data\.source: .*annotated: has changed since .* or --restart"):
        sft.run(config)
    sft.run(config, restart=True)
    sft.run(config)


@pytest.mark.slow
def test_a_run_that_begins_anew_names_once_what_was_cut_with_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints of days stayed somewhere, and nothing said that a key had to be changed back."""
    left: list[str] = []

    def work(job: training.Train, config: SftConfig, stage: TrainingStage, *_: Any) -> None:
        for name in left:
            (stage.run_dir / name).mkdir(parents=True)

    def run(rate: float) -> str:
        values = sft_dict(tmp_path)
        values["optimisation"]["learning_rate"] = rate
        config = parse_config(values, SftConfig, "tiny.yaml")
        sft.run(config)
        said = capsys.readouterr().out
        return said.replace(str(sft.stage(config).run_dir.parent), "RUNS")

    monkeypatch.setattr(training, "_fit", work)
    said = "tiny: starts from the beginning; unfinished work with another configuration or other inputs stays in RUNS/"
    run(0.1)
    left.append("checkpoints/checkpoint-5")
    assert said not in run(0.2)  # the other had no checkpoint
    left.append("final")
    assert said + "tiny-" in run(0.3)
    left.clear()
    assert said not in run(0.3)  # it goes on
    assert " more)" not in run(0.4)  # one of those before is finished
    left.append("checkpoints/checkpoint-5")
    run(0.5)
    assert " (and 1 more)\n" in run(0.6)


@pytest.mark.parametrize("heads", [False, True])
def test_a_model_of_data_that_were_made_again_since_is_not_done(tmp_path: Path, heads: bool) -> None:
    values = values_of(tmp_path, heads=heads)
    made = tmp_path / "annotated"
    shard = annotated_by_a_stage(values, made)
    config = parse_config(values, SftConfig, "tiny.yaml")
    stage = sft.stage(config)
    finish(stage)
    assert sft.stage(config).is_done
    lines = shard.read_text()
    shard.write_text("\n".join(lines.splitlines()[1:]) + "\n")
    again = sft.stage(config)
    assert not again.is_done
    assert again.difference(stage.to_manifest({}, "v1")) == f"other answers in data.source ({made})"
    shard.write_text(lines)
    assert sft.stage(config).is_done


@pytest.mark.parametrize("job", [sft, preference])
def test_a_run_of_epochs_that_ends_before_its_rate_has_risen_says_so(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three pairs on two workers of one row each, two forwards a step: a step an epoch."""
    monkeypatch.setattr(training, "_fit", lambda *_: None)
    values = sft_dict(tmp_path) if job is sft else preference_dict(tmp_path)
    if job is sft:
        values["data"] |= {"documents": 3, "eval_documents": 0, "row_length": 1}
    else:
        values["data"] |= {"pairs": 3, "eval_pairs": 0}
    values["workers"] = {"num_workers": 2, "use_gpu": False}
    del values["optimisation"]["max_steps"]
    values["optimisation"] |= {"rows": 1, "accumulate": 2, "epochs": 3.0}
    for steps, said in ((2, False), (3, True)):
        values["optimisation"]["warmup_steps"] = steps
        job.run(parse_config(values, job.CONFIG, "tiny.yaml"))
        assert ("warmup_steps: 3, but the run has 3 steps" in capsys.readouterr().out) == said


def test_a_model_is_done_whatever_steps_it_was_logged_and_saved_at(tmp_path: Path) -> None:
    """Also one of a commit that took them into the identity."""
    values = sft_dict(tmp_path)
    before, after = (
        parse_config(values | {"schedule": steps}, SftConfig, "tiny.yaml")
        for steps in ({"log_steps": 1, "save_steps": 3}, {"log_steps": 2, "save_steps": 0})
    )
    finish(sft.stage(before))
    for made in (sft.stage(before), as_earlier(sft.stage(before), before)):
        write_manifest(before.output_dir, made.to_manifest({}, "v1"))
        assert sft.stage(after).is_done
    other = dataclasses.replace(after, optimisation=dataclasses.replace(after.optimisation, seed=1))
    assert not sft.stage(other).is_done


def test_draft_heads_are_done_whatever_steps_they_were_logged_and_saved_at(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "start")
    values = sft_dict(tmp_path) | {"output_dir": str(model), "draft_heads": {"depth": 2, "width": 16}}
    values["model"] = {"init_from": str(model)}
    before = parse_config(values, SftConfig, "tiny.yaml")
    after = parse_config(values | {"schedule": {"log_steps": 2}}, SftConfig, "tiny.yaml")
    finish(sft.stage(before))
    for made in (sft.stage(before), as_earlier(sft.stage(before), before)):
        write_json(model / SETTINGS, {"identity": made.identity, "config": to_dict(before)})
        assert sft.stage(after).is_done


def test_a_model_is_done_where_what_it_was_made_of_was_moved(tmp_path: Path) -> None:
    values = sft_dict(tmp_path)
    values["model"] = {"init_from": str(save_tiny_model(tmp_path / "start"))}
    annotated_by_a_stage(values, tmp_path / "annotated")
    finish(sft.stage(parse_config(values, SftConfig, "tiny.yaml")))
    for key, path in (("model", "start"), ("data", "annotated")):
        (tmp_path / path).rename(tmp_path / f"moved-{path}")
        name = {"model": "init_from", "data": "source"}[key]
        values[key] = {**values[key], name: str(tmp_path / f"moved-{path}")}
    moved = {**values, "schedule": {"log_steps": 2}}
    assert sft.stage(parse_config(moved, SftConfig, "tiny.yaml")).is_done
    (tmp_path / "moved-start" / "config.json").write_text("{}")
    assert not sft.stage(parse_config(moved, SftConfig, "tiny.yaml")).is_done


def test_what_a_run_is_said_to_differ_in_is_no_step_of_logging(tmp_path: Path) -> None:
    earlier = sft_config(tmp_path)
    made = as_earlier(sft.stage(earlier), earlier).to_manifest({}, "v1")
    values = sft_dict(tmp_path) | {"schedule": {"log_steps": 2}, "workers": {"num_workers": 1}}
    later = parse_config(values, SftConfig, "tiny.yaml")
    assert sft.stage(later).difference(made) == "workers.num_workers 2 instead of 1"


def test_a_run_directory_in_the_model_s_is_refused(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    inside = dataclasses.replace(config, run_dir=config.output_dir / "runs")
    with pytest.raises(UserError, match=r"^run_dir: .*: lies in output_dir"):
        sft.stage(inside)


def test_what_accelerate_s_launcher_has_left_does_not_change_how_a_worker_trains(monkeypatch, request):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def precision() -> str:
        AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(cpu=True).mixed_precision

    request.addfinalizer(lambda: AcceleratorState._reset_state(reset_partial_state=True))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert precision() == "bf16"
    training.forget_launcher(os.environ)
    assert precision() == "no"


@pytest.mark.parametrize(
    ("cores", "workers", "address", "told"),
    [
        (16, {}, None, "mine: trains on 1 of 16 CPUs; workers.threads and workers.num_workers take more\n"),
        (16, {"num_workers": 2, "threads": 4}, None, "mine: trains on 8 of 16 CPUs; workers.threads and "),
        (16, {"num_workers": 2, "threads": 5}, None, ""),
        (1, {}, None, ""),
        (16, {}, "10.0.0.1:6379", ""),
    ],
)
def test_a_run_says_that_it_leaves_cpus_idle(cores, workers, address, told, monkeypatch, capsys):
    monkeypatch.setattr("jobs.training.num_cores", lambda: cores)
    training._tell_idle_cpus("mine", WorkersSection(**workers), address)
    said = capsys.readouterr().out
    assert said.startswith(told)
    assert bool(said) == bool(told)
