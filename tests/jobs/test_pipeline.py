"""A whole recipe on tiny models, as a user runs it: cut twice, gone on with, unchanged, changed."""

import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import pipeline, sft
from pasta.config import load_config
from pasta.entrypoint import run_main
from pasta.stages.pipeline import PipelineConfig, instances
from pasta.stages.stage import read_manifest, write_manifest
from tests.support.endpoint import endpoint_server
from tests.support.nodes import Nodes
from tests.support.paths import ROOT
from tests.support.service import command
from tests.training.runs import as_earlier, sft_dict

MODELS = ROOT / "platform/pasta/data/atlas/models"
STAGES = ["sft", *(f"round-{n}-{name}" for n in (1, 2) for name in ("sample", "score", "prefer"))]


def write_pipeline(folder: Path, **sampling: Any) -> Path:
    """One SFT stage of two steps from the shipped model, and two rounds over six atlas prompts, three answers each."""
    sft = sft_dict(folder, max_steps=2, learning_rate=1e-6)
    sft["model"] = {"init_from": str(MODELS / "pasta"), "attention": "eager"}
    sft["workers"]["num_workers"] = 1
    sft["data"] |= {"source": "atlas", "documents": 20, "max_length": 1024}
    one_worker = {"num_workers": 1, "use_gpu": False}
    sample = {
        "name": "sample",
        "output_dir": "unused",
        "run_dir": str(folder / "runs"),
        "model": "set by the pipeline",
        "prompts": {"source": "atlas", "count": 6},
        "twin": str(MODELS / "twin"),
        # Hot enough that answers differ.
        "sampling": {"candidates": 3, "temperature": 1.6, **sampling},
        "limits": {"max_tokens": 700},
        "engine": {"device": "cpu", "num_slots": 4, "slot_tokens": 1024},
        "shard_prompts": 1,
        "workers": one_worker,
    }
    score = {
        "name": "score",
        "output_dir": "unused",
        "judgements_dir": str(folder / "judgements"),
        "run_dir": str(folder / "runs"),
        "samples": "set by the pipeline",
        "judge": {"kind": "grader"},
        "quality_weight": 1,
        "workers": one_worker,
    }
    prefer = {
        "name": "prefer",
        "output_dir": "unused",
        "run_dir": str(folder / "runs"),
        "model": {"init_from": "set by the pipeline", "attention": "eager"},
        "data": {"source": "set by the pipeline", "max_length": 1024},
        "optimisation": {"learning_rate": 1e-4, "rows": 2, "max_steps": 1, "precision": "fp32"},
        "workers": one_worker,
    }
    for name, config in (("sft", sft), ("sample", sample), ("score", score), ("prefer", prefer)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))

    def section(job: str, name: str, **keys: Any) -> dict[str, Any]:
        return {"job": job, "config": str(folder / f"{name}.yaml"), "set": keys}

    recipe = {
        "name": "tiny",
        "output_dir": str(folder / "out"),
        "tracking": "disabled",
        "stages": {"sft": section("sft", "sft")},
        "rounds": 2,
        "round": {
            "sample": section("sample", "sample", model="@model"),
            "score": section("score", "score", samples="@sample"),
            "prefer": section(
                "preference", "prefer", **{"model.init_from": "@model", "data.source": "@score"}
            ),
        },
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    """One for the stages of all three runs: a stage without one starts its own."""
    with Nodes(num_cpus=2, dashboard=True) as nodes:
        yield nodes


def plan(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What --dry-run says of each stage."""
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path), "--dry-run"])
    assert pipeline.main() == 0
    # DeepSpeed greets on stdout when it is first imported.
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    return {name: said for name, _, said in lines if name in STAGES}


def refusal(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line with which the command ends."""
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        run_main(pipeline.main)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(2400)
def test_a_pipeline_whose_driver_is_killed_and_then_interrupted_ends_whole(
    cluster, tmp_path, capsys, monkeypatch
):
    path = write_pipeline(tmp_path)
    run = partial(command, "-m", "jobs.pipeline", "--config", path, **cluster.environment)
    with run(log=tmp_path / "1.log") as job:
        job.wait_for(r"^tiny 2/7 round-1-sample: to run")
        job.wait_for(r"^round-1-sample: \d+/6 prompts")
        job.end(signal.SIGKILL, 60)
    assert [directory.name[:4] for directory in (tmp_path / "out").glob("[!.]*")] == ["sft-"]

    with run(log=tmp_path / "2.log") as job:
        job.wait_for(r"^tiny 2/7 round-1-sample: to run, from where it was cut")
        job.wait_for(r"^tiny 4/7 round-1-prefer: to run")
        assert job.end(signal.SIGINT, 240) == 130
        assert "cut in round-1-prefer; the same command goes on there" in job.output

    with run(log=tmp_path / "3.log") as job:
        assert job.process.wait(1500) == 0, job.output
        assert re.search(r"^tiny 3/7 round-1-score: unchanged", job.output, re.MULTILINE)
    done = plan(path, capsys, monkeypatch)
    assert list(done) == STAGES
    assert all(said.startswith("unchanged") for said in done.values())
    manifests = {name: read_manifest(*(tmp_path / "out").glob(f"{name}-????????")) for name in STAGES}
    read = manifests["round-2-sample"].inputs["model"]["fingerprint"]
    assert read == manifests["round-1-prefer"].identity

    write_pipeline(tmp_path, temperature=0.5)
    changed = plan(path, capsys, monkeypatch)
    assert changed["sft"].startswith("unchanged")
    assert changed["round-1-sample"] == "to run: the last one had sampling.temperature 1.6 instead of 0.5"
    assert changed["round-1-prefer"] == "to run, after round-1-score"


def test_a_model_that_was_made_is_unchanged_with_other_steps_of_logging(tmp_path, capsys, monkeypatch):
    """It stays where a commit put it that took them into its identity."""
    path = write_pipeline(tmp_path)
    config, (step, *_) = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(path)]))
    stage = pipeline.read_stages(config, [step])["sft"]
    made = as_earlier(sft.stage(stage), stage).to_manifest({}, "v1")
    place = tmp_path / "out" / f"sft-{made.identity[:8]}"
    place.mkdir(parents=True)
    write_manifest(place, made)
    (place / "model.safetensors").touch()
    recipe = yaml.safe_load(path.read_text())
    recipe["stages"]["sft"]["set"] = {"schedule.log_steps": 5, "schedule.keep_checkpoints": 1}
    recipe |= {"rounds": 0, "round": {}}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert plan(path, capsys, monkeypatch)["sft"] == f"unchanged, in {place}"
    (place / "model.safetensors").unlink()
    assert plan(path, capsys, monkeypatch)["sft"] == "to run: a part of the last one is gone"


def test_before_anything_ran_the_plan_says_what_waits_for_what(tmp_path, capsys, monkeypatch):
    path = write_pipeline(tmp_path)
    said = plan(path, capsys, monkeypatch)
    assert list(said) == STAGES
    assert said["sft"] == "to run, not done yet"
    assert said["round-2-sample"] == "to run, after round-1-prefer"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/pipelines").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_shipped_pipeline_has_a_plan_to_its_end(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = ["--dry-run", "--config", str(path), "--set", f"output_dir={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["pipeline", *options])
    assert pipeline.main() == 0
    said = dict(re.findall(r"^(\S+): (to run, .+)$", capsys.readouterr().out, re.MULTILINE))
    steps = [step.name for step in instances(load_config(path, PipelineConfig, []), path)]
    assert list(said) == steps
    assert said[steps[0]] == "to run, not done yet"


def test_a_mistake_in_the_last_stage_is_found_before_the_first_one_runs(tmp_path, capsys, monkeypatch):
    path = write_pipeline(tmp_path)
    recipe = yaml.safe_load(path.read_text())
    recipe["round"]["prefer"]["set"]["objective.alfa"] = 1
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert "'alfa' (did you mean 'alpha'?)" in refusal(path, capsys, monkeypatch)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stage", "changes", "said"),
    [
        ("sample", {"prompts.source": "nowhere.jsonl"}, "prompts.source: nowhere.jsonl: no such file"),
        ("sample", {"prompts.source": "broken.json"}, "broken.json: "),
        (
            "sample",
            {"prompts.source": "own.jsonl", "prompts.count": 1},
            "round-1-score: judge.kind: grader: 'What is love?' is no atlas prompt",
        ),
        (
            "score",
            {
                "judge": {
                    "kind": "teacher",
                    "teacher": {"endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "j"}},
                }
            },
            "round-1-score: judge.teacher.endpoint.api_key_env: ",
        ),
    ],
)
def test_prompts_and_keys_of_a_late_stage_are_missed_before_the_first_one_runs(
    tmp_path, capsys, monkeypatch, stage, changes, said
):
    path = write_pipeline(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: pytest.fail("stages were run"))
    Path("broken.json").write_text("[1]")
    Path("own.jsonl").write_text('{"messages": [{"role": "user", "content": "What is love?"}]}')
    recipe = yaml.safe_load(path.read_text())
    recipe["round"][stage]["set"] |= changes
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert said in refusal(path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("job", "shipped", "changes", "said"),
    [
        ("annotate", "slimorca", {}, "last: data.teacher.endpoint.api_key_env: "),
        (
            "annotate",
            "slimorca",
            {
                "data.teacher.endpoint.api_key_env": None,
                "data.teacher.independence_judge": {
                    "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "j"}
                },
            },
            "last: data.teacher.independence_judge.endpoint.api_key_env: ",
        ),
        (
            "evaluate",
            "atlas",
            {
                "methods.gpt": {
                    "kind": "endpoint",
                    "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
                }
            },
            "last: methods.gpt.endpoint.api_key_env: ",
        ),
    ],
)
def test_keys_of_teachers_and_methods_are_missed_before_the_first_stage_runs(
    tmp_path, capsys, monkeypatch, job, shipped, changes, said
):
    path = write_pipeline(tmp_path)
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: pytest.fail("stages were run"))
    recipe = yaml.safe_load(path.read_text())
    recipe["stages"]["last"] = {
        "job": job,
        "config": str(ROOT / f"configs/{job}/{shipped}.yaml"),
        "set": changes,
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert said in refusal(path, capsys, monkeypatch)


def test_a_judge_that_rounds_share_is_asked_once_whether_it_answers_before_the_first_stage_runs(
    tmp_path, capsys, monkeypatch
):
    path = write_pipeline(tmp_path)
    monkeypatch.setattr(pipeline, "run", lambda *_, **__: pytest.fail("stages were run"))
    recipe = yaml.safe_load(path.read_text())
    with endpoint_server(lambda *_: (401, {"error": {"message": "no key"}})) as server:
        endpoint = {"base_url": server.url, "model": "j", "api_key_env": None}
        recipe["round"]["score"]["set"]["judge"] = {"kind": "teacher", "teacher": {"endpoint": endpoint}}
        path.write_text(yaml.safe_dump(recipe, sort_keys=False))
        assert f"round-1-score: endpoint {server.url}: refused a request without a key" in refusal(
            path, capsys, monkeypatch
        )
        monkeypatch.setattr(server, "_answer", lambda *_: None)
        monkeypatch.setattr(pipeline, "run", lambda *_, **__: 0)
        assert pipeline.main() == 0
    (told,) = [line for line in capsys.readouterr().err.splitlines() if server.url in line]
    assert told.endswith("; it must answer when this stage begins")
    assert len(server.requests) == 2


def test_with_storage_everything_below_runs_lies_there(monkeypatch):
    monkeypatch.chdir(ROOT)
    path = ROOT / "configs/pipelines/atlas.yaml"
    options = ["--config", str(path), "--set", "storage=/mnt/pasta"]
    config, steps = pipeline.read_recipe(pipeline.parser().parse_args(options))
    assert config.output_dir == Path("/mnt/pasta/runs/pipelines/atlas")
    stages = pipeline.read_stages(config, steps)
    assert {stage.run_dir.parts[:4] for stage in stages.values()} == {("/", "mnt", "pasta", "runs")}
    assert stages["round-1-score"].judgements_dir.is_relative_to("/mnt/pasta/runs")
    # What lies elsewhere stays there.
    assert str(stages["round-1-sample"].twin) == "platform/pasta/data/atlas/models/twin"


def test_storage_must_be_absolute(tmp_path, capsys, monkeypatch):
    path = write_pipeline(tmp_path)
    recipe = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(recipe | {"storage": "mnt/pasta"}, sort_keys=False))
    assert "storage 'mnt/pasta': expected an absolute path" in refusal(path, capsys, monkeypatch)


def test_two_pipelines_do_not_share_a_directory(tmp_path, capsys, monkeypatch):
    path = write_pipeline(tmp_path)
    with pipeline.locked(tmp_path / "out"):
        assert "another pipeline is running there" in refusal(path, capsys, monkeypatch)


def test_an_unknown_stage_to_restart_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["pipeline", "--config", str(write_pipeline(tmp_path)), "--restart", "smaple"]
    )
    with pytest.raises(SystemExit):
        run_main(pipeline.main)
    assert "'smaple' is no stage; expected one of sft, round-1-sample" in capsys.readouterr().err
