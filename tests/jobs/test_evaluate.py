"""The evaluate job as a user runs it: interrupted twice and gone on with, its report made again, and mistakes."""

import json
import re
import shutil
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import evaluate, pipeline
from pasta.config import load_config
from pasta.data.atlas import heldout_prompts
from pasta.data.endpoint import EndpointError
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.evaluation.config import EvaluateConfig
from pasta.evaluation.judging import JUDGED
from pasta.evaluation.methods.decode import decode_prompt
from pasta.evaluation.methods.make import make_methods
from pasta.evaluation.prompts import read_eval_prompts
from pasta.evaluation.results.evaluations import Evaluation
from pasta.stages.records import RecordFile
from pasta.stages.stage import Manifest, read_manifest, write_manifest
from tests.support.endpoint import EndpointServer, completion, endpoint_server
from tests.support.evaluations import answer, prompt
from tests.support.interrupts import interrupt
from tests.support.paths import ROOT
from tests.support.service import command, save_tiny_model
from tests.support.wandb_runs import history, wait_until_written

MODELS = ROOT / "platform/pasta/data/atlas/models"
KEY = "key-that-belongs-into-no-file"
TWIN = {"kind": "sequential", "model": str(MODELS / "twin")}
PASTA = {"kind": "pasta", "model": str(MODELS / "pasta")}


def write_config(folder: Path, **changes: Any) -> Path:
    """Three short tasks of the atlas, answered by the shipped models."""
    tasks = sorted((t for t in heldout_prompts(100) if t.independent), key=lambda t: len(t.answer))[:3]
    lines = [json.dumps({"messages": task.messages}) for task in tasks]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    config: dict[str, Any] = {
        "name": "tiny-evaluate",
        "output_dir": str(folder / "evaluation"),
        "run_dir": str(folder / "runs"),
        "prompts": {"source": str(folder / "prompts.jsonl")},
        "baseline": "twin",
        "methods": {"twin": TWIN, "pasta": PASTA},
        "judge": {"kind": "grader"},
        "limits": {"max_tokens": 400},
        "engine": {"device": "cpu", "dtype": "float32", "slot_tokens": 512},
        "workers": {"use_gpu": False},
    }
    path = folder / "evaluate.yaml"
    path.write_text(yaml.safe_dump(config | changes, sort_keys=False))
    return path


def remote(server: EndpointServer, **values: Any) -> dict[str, Any]:
    return {"base_url": server.url, "model": "m", "api_key_env": "JUDGE_KEY", **values}


def records(folder: Path, name: str) -> dict[str, Any]:
    """The records of a file of the evaluation, finished or not, by key."""
    (path,) = [*folder.glob(f"evaluation/{name}"), *folder.glob(f".evaluation.*/{name}")]
    _, *found = map(json.loads, path.read_text().splitlines())
    return {record["key"]: record for record in found}


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_an_evaluation_interrupted_while_it_decodes_and_while_it_judges_does_nothing_twice(
    tmp_path, monkeypatch, capsys, ray, exit_code
):
    def answer(body, number):
        if body["model"] == "writer":
            return completion(f"Answer {number}.")
        if len(judged()) == 2 and not refused:
            refused.append(number)
            return 401, {}
        return completion("A")

    def judged() -> list[dict[str, Any]]:
        # Whether it answers at all is asked without a system message.
        bodies = [request["body"] for request in server.requests if request["body"]["model"] == "judge"]
        return [body for body in bodies if body["messages"][0]["role"] == "system"]

    refused: list[int] = []
    with endpoint_server(answer) as server:
        path = write_config(
            tmp_path,
            methods={
                "twin": TWIN,
                "pasta": PASTA,
                "remote": {"kind": "endpoint", "endpoint": remote(server, model="writer")},
            },
            judge={
                "kind": "teacher",
                "teacher": {"endpoint": remote(server, model="judge", concurrency=1)},
            },
        )
        with command("-m", "jobs.evaluate", "--config", path, log=tmp_path / "log", JUDGE_KEY=KEY) as job:
            job.wait_for(r"^tiny-evaluate, decoding: \d/3 prompts  .*eta")
            assert job.end(signal.SIGINT, 120) == 130
            assert "the same command goes on at the prompt where this one stopped" in job.output
            assert job.leaves_nothing(60)
        assert not (tmp_path / "evaluation").exists()
        before = records(tmp_path, "answers.jsonl")
        assert 1 <= len(before) <= 3
        # What is there can be looked at.
        assert evaluate.main(["--config", str(path), "--report-only"]) == 0
        assert list(tmp_path.glob(".evaluation.*/report.md"))

        monkeypatch.setenv("JUDGE_KEY", KEY)
        capsys.readouterr()
        assert exit_code(evaluate.main, "--config", path) == 2
        printed = capsys.readouterr()
        found = f"tiny-evaluate, decoding: 3 prompts, {len(before)} found from an earlier run"
        assert found in printed.out + printed.err
        (error,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
        assert "refused the key in JUDGE_KEY (HTTP 401); check it" in error
        after = records(tmp_path, "answers.jsonl")
        assert len(after) == 3
        # Timings and all: what was decoded was not decoded again.
        assert {key: after[key] for key in before} == before

        assert exit_code(evaluate.main, "--config", path) == 0
        assert "0 of 6 verdicts invalid" in "".join(capsys.readouterr())
        questions = [json.dumps(body["messages"]) for body in judged()]
        assert len(questions) == len(set(questions)) + len(refused)
    assert records(tmp_path, "answers.jsonl") == after
    verdicts = records(tmp_path, "verdicts.jsonl")
    assert verdicts.keys() == after.keys()
    # A judge that says A in both orders has no preference.
    assert all(entry["verdicts"]["remote"]["quality"] == 0.5 for entry in verdicts.values())
    for entry in after.values():
        assert len(entry["answers"]["twin"]["seconds"]) == 1
        assert entry["answers"]["pasta"]["critical_path"] < entry["answers"]["twin"]["tokens"]
        assert entry["family"]
    files = {file.name for file in (tmp_path / "evaluation").iterdir()}
    assert files > {"answers.jsonl", "verdicts.jsonl", "machines.json", "figures.json", "report.md"}
    for machine in json.loads((tmp_path / "evaluation/machines.json").read_text()):  # one for each run
        assert machine["formats"].keys() == {"twin", "pasta"}  # not the endpoint's
        assert set(machine["formats"].values()) <= {"float32", "bfloat16"}
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert [file.name for file in tmp_path.glob(".*")] == []


def test_figures_count_what_the_judge_used_before_a_run_was_interrupted(tmp_path):
    with endpoint_server(lambda _, number: (401, {}) if number == 2 * JUDGED else completion("A")) as server:
        section = {"endpoint": remote(server, concurrency=1)}
        config = load_config(
            write_config(tmp_path, judge={"kind": "teacher", "teacher": section}), EvaluateConfig
        )
        answers, verdicts = (RecordFile(tmp_path / name, {}) for name in ("answers", "verdicts"))
        for n in range(JUDGED + 4):
            record = prompt(str(n), {"twin": answer("Tea is hot."), "pasta": answer("Tea is cold.")})
            answers.add(record["key"], record)
        with pytest.raises(EndpointError):
            evaluate._judge(config, config.judge, answers, verdicts, bool, KEY)
        assert len(verdicts) == JUDGED
        figures = evaluate._judge(config, config.judge, answers, verdicts, bool, KEY)
    assert figures["judge_requests"] == len(server.requests) - 1 == 2 * len(answers)


def test_figures_count_what_the_judge_used_where_a_run_was_killed_after_its_last_verdict(
    tmp_path, monkeypatch
):
    with endpoint_server(lambda *_: completion("A")) as server:
        section = {"endpoint": remote(server, concurrency=1)}
        path = write_config(tmp_path, judge={"kind": "teacher", "teacher": section})
        config = load_config(path, EvaluateConfig)
        answers, verdicts = (RecordFile(tmp_path / name, {}) for name in ("answers", "verdicts"))
        answers.add("0", prompt("0", {"twin": answer("Tea is hot."), "pasta": answer("Tea is cold.")}))
        with monkeypatch.context() as patched:
            patched.setattr(evaluate.VerdictTally, "count", interrupt)
            with pytest.raises(KeyboardInterrupt):
                evaluate._judge(config, config.judge, answers, verdicts, bool, KEY)
        assert len(verdicts) == 1
        figures = evaluate._judge(config, config.judge, answers, verdicts, bool, KEY)
    assert figures["judge_requests"] == len(server.requests) == 2


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_quality_alone_is_decoded_by_several_workers_and_its_report_is_made_again(
    tmp_path, capsys, monkeypatch, ray, exit_code
):
    path = write_config(tmp_path, repeats=0, workers={"num_workers": 2, "use_gpu": False})
    assert exit_code(evaluate.main, "--config", path) == 0
    assert "(theoretical)" in "".join(capsys.readouterr())
    manifest = read_manifest(tmp_path / "evaluation")
    assert manifest is not None
    assert manifest.stage == "evaluate"
    assert manifest.figures["judge_invalid"] == 0
    assert manifest.figures["pasta.theoretical"] > 1
    assert "pasta.realised" not in manifest.figures
    assert 0 < manifest.figures["twin.quality"] <= 1
    (run_file,) = tmp_path.glob("runs/tiny-evaluate-*/wandb/offline-run-*/*.wandb")
    wait_until_written(run_file)
    logged = {name for row in history(run_file) for name in row}
    pictures = [file.relative_to(tmp_path / "evaluation") for file in tmp_path.glob("evaluation/**/*.png")]
    assert Path("pareto.png") in pictures
    assert logged >= {f"evaluate/{picture.with_suffix('')}/path" for picture in pictures}
    assert "evaluate/methods/ncols" in logged

    assert evaluate.main(["--config", str(path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    before = records(tmp_path, "answers.jsonl")
    (tmp_path / "evaluation" / "report.md").unlink()
    labelled = {"twin": TWIN, "pasta": PASTA | {"label": "shipped", "line": "ours"}}
    write_config(tmp_path, repeats=0, methods=labelled, workers={"use_gpu": False})
    assert evaluate.main(["--config", str(path), "--report-only"]) == 0
    assert "shipped" in (tmp_path / "evaluation" / "report.md").read_text()
    assert records(tmp_path, "answers.jsonl") == before

    write_config(tmp_path, methods={"twin": TWIN, "other": PASTA})
    assert "with other methods" in fail(monkeypatch, capsys, "--config", str(path), "--report-only")


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_two_processes_that_share_the_models_of_all_methods_answer_as_one(tmp_path, ray):
    twin, pasta = (str(save_tiny_model(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    path = write_config(
        tmp_path,
        methods={
            "twin": {"kind": "sequential", "model": twin},
            "pasta": {"kind": "pasta", "model": pasta, "promise_bias": 6.0, "hint_factor": 2.0},
        },
        judge=None,
        repeats=0,
        limits={"max_tokens": 60, "max_chunk_tokens": 12},
        workers={"tensor_parallel": 2, "use_gpu": False},
    )
    config = load_config(path, EvaluateConfig)
    assert evaluate.run(config) == 0
    methods = make_methods(config.methods, config.limits, config.engine, {})
    expected = [decode_prompt(methods, entry, 0)["answers"] for entry in read_eval_prompts(config.prompts)]
    found = [record["answers"] for record in records(tmp_path, "answers.jsonl").values()]
    assert [{name: answer["text"] for name, answer in answers.items()} for answers in found] == [
        {name: answer["text"] for name, answer in answers.items()} for answers in expected
    ]


def test_a_judge_s_model_runs_on_the_cluster_that_the_command_names(tmp_path, monkeypatch):
    """Else --address would not count for it: its place would be judged as one of a Ray of this machine's own."""
    judge = {"kind": "reward", "reward": {"model": "./reward"}}
    config = load_config(write_config(tmp_path, judge=judge), EvaluateConfig)
    answers = RecordFile(tmp_path / "answers.jsonl", {})
    answers.add("1", {"answers": {}})
    named = []
    monkeypatch.setattr(evaluate, "run_shards", lambda *given: named.append(given[4:]))
    verdicts = RecordFile(tmp_path / "verdicts.jsonl", {})
    assert config.judge is not None
    evaluate._judge(config, config.judge, answers, verdicts, bool, None, "HEAD:6379")
    assert named == [("HEAD:6379",)]


def test_an_evaluation_stays_where_a_restart_ends_before_the_first_answer(tmp_path, monkeypatch):
    def fails(*_):
        raise UserError("the model cannot be loaded")

    monkeypatch.setattr(evaluate, "run_shards", fails)
    monkeypatch.setattr(evaluate, "_cluster", lambda *_: nullcontext())
    config = load_config(write_config(tmp_path, tracking={"mode": "disabled"}), EvaluateConfig)
    output = evaluate.stage(config)
    output.start()
    output.finish({}, "v1")
    with pytest.raises(UserError, match="cannot be loaded"):
        evaluate.run(config, restart=True)
    assert read_manifest(config.output_dir) is not None


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake leaves on stderr, before any worker starts."""
    monkeypatch.setattr(sys, "argv", ["jobs.evaluate", *arguments])
    monkeypatch.setattr(evaluate, "run_shards", lambda *_: pytest.fail("workers were started"))
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(SystemExit) as error:
        run_main(evaluate.main)
    assert error.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "JUDGE_KEY"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"metods": {}}, "unknown key 'metods' (did you mean 'methods'?)"),
        ({"baseline": "twn"}, "baseline 'twn': no such method; expected one of twin, pasta"),
        ({"workers": {"num_workers": 2}}, "workers.num_workers 2: expected 1 with repeats 1"),
        (
            {"methods": {"twin": TWIN, "pasta": {"kind": "pasta", "model": "./gone"}}},
            "methods.pasta.model: ./gone: no such directory; train that model first",
        ),
        (
            {"methods": {"twin": TWIN, "gpt": {"kind": "endpoint", "endpoint": ENDPOINT}}},
            "methods.gpt.endpoint.api_key_env: JUDGE_KEY is not set; export it",
        ),
        (
            {"judge": {"kind": "teacher", "teacher": {"endpoint": ENDPOINT}}},
            "judge.teacher.endpoint.api_key_env: JUDGE_KEY is not set; export it",
        ),
        (
            {"workers": {"tensor_parallel": 3}},
            "workers.tensor_parallel: 3 processes cannot share the model's ",
        ),
        (
            {
                "methods": {
                    "a": {"kind": "endpoint", "endpoint": ENDPOINT},
                    "b": {"kind": "endpoint", "endpoint": ENDPOINT},
                },
                "baseline": "a",
                "workers": {"tensor_parallel": 2},
            },
            "workers.tensor_parallel 2: expected 1, for no method has a model to share; endpoints decode elsewhere",
        ),
        ({"engine": {"slot_tokens": 400}}, "engine.slot_tokens 400: expected at least 402"),
        ({"engine": {"slot_tokens": 402}}, "engine.slot_tokens: 402, but a slot holds a prompt"),
        ({"engine": {"device": "cpu", "compile": "on"}}, "engine.compile: 'on', but steps are not captured"),
        ({"prompts": {"source": "gone.jsonl"}}, "prompts.source: gone.jsonl: no such file"),
        ({"prompts": {"source": "atlas", "count": 13_000}}, "prompts.count: atlas: 13000 held-out prompts"),
    ],
)
def test_a_mistake_is_one_line_before_any_worker_starts(tmp_path, monkeypatch, capsys, changes, expected):
    path = write_config(tmp_path, **changes)
    assert expected in fail(monkeypatch, capsys, "--config", str(path))
    assert not (tmp_path / "evaluation").exists()


def test_the_grader_refuses_prompts_of_one_s_own_before_they_are_decoded(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path)
    own = {"messages": [{"role": "user", "content": "What is love?"}]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(own))
    line = fail(monkeypatch, capsys, "--config", str(path))
    assert "judge.kind: grader: 'What is love?' is no atlas prompt" in line


def test_a_report_alone_needs_records(tmp_path, monkeypatch, capsys):
    path = str(write_config(tmp_path))
    assert "nothing is decoded" in fail(monkeypatch, capsys, "--config", path, "--report-only")
    assert "expected without --restart" in fail(
        monkeypatch, capsys, "--config", path, "--report-only", "--restart"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("repeats=5", "was made with repeats 1 instead of 5; expected the configuration"),
        ("limits.max_tokens=300", "was made with limits.max_tokens 400 instead of 300"),
        ("workers.threads=2", "was made with threads 1 instead of 2"),
        ("judge=null", "was made with judge.kind 'grader' instead of None"),
    ],
)
def test_the_report_of_a_finished_evaluation_shows_the_configuration_that_it_was_made_with(
    tmp_path, change, says
):
    path = write_config(tmp_path)
    config, other = (load_config(path, EvaluateConfig, overrides) for overrides in ([], [change]))
    earlier = {**config.identity(), "limits": {"max_tokens": 400}}  # of a commit with fewer keys
    config.output_dir.mkdir()
    manifest = Manifest("evaluate", "0" * 16, earlier, {}, "a commit", {}, "2026-01-01T00:00:00+00:00")
    write_manifest(config.output_dir, manifest)
    assert evaluate._records_of(config) == config.output_dir
    with pytest.raises(UserError, match=re.escape(says)):
        evaluate._records_of(other)
    # And the other way round.
    write_manifest(config.output_dir, replace(manifest, config=other.identity()))
    assert evaluate._records_of(other) == config.output_dir
    with pytest.raises(UserError, match="was made with"):
        evaluate._records_of(config)


@pytest.mark.parametrize(
    ("finished", "part"), [(True, ""), (False, " of the 3 of 5 prompts that are decoded")]
)
def test_the_report_of_a_finished_evaluation_reads_no_prompts_again(
    tmp_path, monkeypatch, capsys, finished, part
):
    config = load_config(write_config(tmp_path), EvaluateConfig)
    found = Evaluation(tmp_path, tuple({"key": key} for key in "abc"), (), finished=finished)
    monkeypatch.setattr(evaluate, "_records_of", lambda _: tmp_path)
    monkeypatch.setattr(evaluate, "read_evaluation", lambda _: found)
    monkeypatch.setattr(evaluate, "_report", lambda *_: None)
    if finished:
        monkeypatch.setattr(evaluate, "read_eval_prompts", lambda _: pytest.fail("the source was read"))
    else:
        monkeypatch.setattr(evaluate, "read_eval_prompts", lambda _: range(5))
    assert evaluate.report_only(config) == 0
    assert capsys.readouterr().out == f"{config.name}: report{part} written to {tmp_path}\n"


def test_the_report_of_an_evaluation_that_has_lost_answers_says_so(tmp_path, monkeypatch, capsys):
    config = load_config(write_config(tmp_path), EvaluateConfig)
    found = Evaluation(tmp_path, ({"key": "a"},), (), finished=True, prompts=3)
    monkeypatch.setattr(evaluate, "_records_of", lambda _: tmp_path)
    monkeypatch.setattr(evaluate, "read_evaluation", lambda _: found)
    monkeypatch.setattr(evaluate, "_report", lambda *_: None)
    assert evaluate.report_only(config) == 0
    assert "the answers to 2 of 3 prompts are gone; the report is of what is there" in capsys.readouterr().out


@pytest.mark.slow
def test_how_points_are_drawn_and_who_runs_it_is_no_part_of_an_evaluation(tmp_path):
    path = write_config(tmp_path)

    def identity(*overrides: str) -> str:
        always = ("engine.draft_heads=false", *overrides)
        return evaluate.stage(load_config(path, EvaluateConfig, always)).identity

    first = identity()
    assert identity("methods.pasta.label=a", "name=other", "workers.max_failures=5") == first
    timing = ("repeats=2", "workers.threads=2", "workers.tensor_parallel=2")
    for change in ("methods.pasta.promise_bias=1", *timing, "judge=null"):
        assert identity(change) != first


@pytest.mark.slow
def test_draft_heads_that_come_beside_a_model_are_measured(tmp_path):
    """A trained model is known by its stage, which stays what it was: there was nothing to do, for other seconds."""
    model = shutil.copytree(MODELS / "pasta", tmp_path / "model")
    heads = [model / "draft_heads.json", model / "draft_heads.safetensors"]
    kept = [file.rename(tmp_path / file.name) for file in heads]
    write_manifest(model, Manifest("sft", "1", {}, {}, "v1", {}, "2026-01-01T00:00:00+00:00"))
    path = write_config(tmp_path, methods={"twin": TWIN, "pasta": PASTA | {"model": str(model)}})

    def identities():
        return [
            evaluate.stage(load_config(path, EvaluateConfig, [change])).identity
            for change in ("repeats=1", "repeats=0", "engine.draft_heads=false")
        ]

    without = identities()
    for file, place in zip(kept, heads, strict=True):
        file.rename(place)
    timed, untimed, unused = identities()
    assert timed != without[0]
    assert [untimed, unused] == without[1:]


def test_an_evaluation_is_a_stage_of_a_pipeline(tmp_path, monkeypatch, capsys):
    recipe = {
        "name": "recipe",
        "output_dir": str(tmp_path / "out"),
        "tracking": "disabled",
        "stages": {"measure": {"job": "evaluate", "config": str(write_config(tmp_path))}},
    }
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(path), "--dry-run"])
    assert pipeline.main() == 0
    assert "measure: to run, not done yet" in capsys.readouterr().out
