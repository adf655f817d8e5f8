"""The score job as a user runs it: an endpoint that fails half-way, verdicts used again, and mistakes."""

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import score
from pasta.candidates.scoring import ScoreConfig
from pasta.config import load_config
from pasta.data.pairs import pair_of, pairs_file
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.rows import read_rows
from pasta.stages.lock import sole_writer
from pasta.stages.shards import write_shard
from pasta.stages.stage import StageOutput, read_manifest
from tests.support.endpoint import EndpointServer, completion, endpoint_server
from tests.support.paths import ROOT
from tests.support.samples import record, sample_stage, tasks, variations
from tests.support.service import save_tiny_model

KEY = "key-that-belongs-into-no-file"


def write_config(folder: Path, **changes: Any) -> Path:
    """A stage over four prompts with three answers each, in shards of two."""
    if not (folder / "samples").exists():
        sample_stage(folder / "samples", [record(task, variations(task)) for task in tasks(4)])
    config: dict[str, Any] = {
        "name": "tiny-score",
        "output_dir": str(folder / "scores"),
        "judgements_dir": str(folder / "judgements"),
        "run_dir": str(folder / "runs"),
        "samples": str(folder / "samples"),
        "judge": {"kind": "grader"},
        "quality_weight": 4,
        "workers": {"num_workers": 1, "use_gpu": False},
    }
    path = folder / "score.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    return path


def teacher(server: EndpointServer, **values: Any) -> dict[str, Any]:
    endpoint = {
        "base_url": server.url,
        "model": "judge",
        "api_key_env": "JUDGE_KEY",
        "concurrency": 1,
        **values,
    }
    return {"kind": "teacher", "teacher": {"endpoint": endpoint}}


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_a_run_that_its_endpoint_ended_goes_on_and_pays_for_nothing_twice(
    tmp_path, monkeypatch, capsys, ray, exit_code
):
    def answer(body, number):
        return (401, {}) if number == 5 else completion("A")

    with endpoint_server(answer) as server:
        path = write_config(tmp_path, judge=teacher(server))
        monkeypatch.setenv("JUDGE_KEY", KEY)
        assert exit_code(score.main, "--config", path) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "refused the key in JUDGE_KEY (HTTP 401); check it" in errors[0]
        assert not (tmp_path / "scores").exists()
        assert exit_code(score.main, "--config", path) == 0
        printed = "".join(capsys.readouterr())
        assert "tiny-score, judging: 2/2 shards  0 of 12 verdicts invalid" in printed
        assert "4 pairs of 4 prompts" in printed
        # Two of a prompt's three answers are the twin's own text: the third takes two requests. And the 401.
        assert len(server.requests) == 4 * 2 + 1
    pairs = [pair_of(row) for row in read_rows(pairs_file(tmp_path / "scores"))]
    assert len(pairs) == 4
    manifest = read_manifest(tmp_path / "scores")
    assert manifest is not None
    assert manifest.figures["pairs"] == 4
    assert manifest.figures["judge_verdicts"] == 12
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]

    # The server is gone: with another weight the verdicts that are there are used.
    other = tmp_path / "other"
    monkeypatch.delenv("JUDGE_KEY")
    changes = ("--set", "quality_weight=1", "--set", f"output_dir={other}")
    assert exit_code(score.main, "--config", path, *changes) == 0
    assert len([pair_of(row) for row in read_rows(pairs_file(other))]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", ["between shards", "before a shard is written", "after the last shard is written"]
)
def test_figures_count_the_requests_of_a_run_that_was_interrupted(tmp_path, monkeypatch, killed):
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def in_process(make, shards, on_result, *_):
        work = make()
        for number, path in shards.items():
            on_result(number, work(path))
            if interrupted and killed == "between shards":
                raise KeyboardInterrupt

    def written(directory, prefix, number, records):
        if interrupted and killed == "before a shard is written":
            raise KeyboardInterrupt
        write_shard(directory, prefix, number, records)
        if interrupted and number == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(score, "run_shards", in_process)
    monkeypatch.setattr(score, "write_shard", written)
    with endpoint_server(lambda *_: completion("A")) as server:
        path = write_config(tmp_path, judge=teacher(server), tracking={"mode": "disabled"})
        config = load_config(path, ScoreConfig)
        interrupted = True
        with pytest.raises(KeyboardInterrupt):
            score.run(config)
        interrupted = False
        score.run(config)
    manifest = read_manifest(tmp_path / "scores")
    assert manifest is not None
    assert manifest.figures["judge_requests"] == len(server.requests) == 8


@pytest.mark.parametrize("lost", ["whole", "in part"])
def test_a_shard_of_verdicts_that_is_lost_is_judged_again_alone(tmp_path, monkeypatch, capsys, lost):
    judged: list[int] = []

    def in_process(make, shards, on_result, *_):
        work = make()
        for number, path in shards.items():
            judged.append(number)
            on_result(number, work(path))

    monkeypatch.setattr(score, "run_shards", in_process)
    path = write_config(tmp_path, tracking={"mode": "disabled"})
    config = load_config(path, ScoreConfig)
    score.run(config)
    shard = score.judgements(config).output_dir / "verdicts-00001.jsonl"
    made = shard.read_bytes()
    if lost == "whole":
        shard.unlink()
    else:
        shard.write_bytes(made[:-9])
    judged.clear()
    assert score.run(config, restart=True) == 0
    assert judged == [1]
    assert "verdicts-00001.jsonl: lost, judged again" in capsys.readouterr().out
    assert read_manifest(config.output_dir) is not None
    assert shard.read_bytes() == made


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake leaves on stderr, before any worker starts."""
    monkeypatch.setattr(sys, "argv", ["jobs.score", *arguments])
    monkeypatch.setattr(score, "run_shards", lambda *_: pytest.fail("workers were started"))
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(SystemExit) as error:
        run_main(score.main)
    assert error.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "judge", "api_key_env": "JUDGE_KEY"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quality_wieght": 1}, "unknown key 'quality_wieght'"),
        ({"workers": {"tensor_parallel": 2}}, "workers: unknown key 'tensor_parallel'"),
        ({"samples": "./gone"}, "samples: gone: holds no finished stage; run the sample stage first"),
        (
            {"judge": {"kind": "teacher", "teacher": {"endpoint": ENDPOINT}}},
            "judge.teacher.endpoint.api_key_env: JUDGE_KEY is not set; export it",
        ),
        (
            {"judge": {"kind": "teacher", "teacher": {"endpoint": ENDPOINT}}, "workers": {"num_workers": 2}},
            "workers.num_workers 2: expected 1 with judge.kind: teacher",
        ),
        (
            {"judge": {"kind": "reward", "reward": {"model": "./gone"}}},
            "judge.reward.model: ./gone: no such directory; train that model first",
        ),
    ],
)
def test_a_mistake_is_one_line_before_any_worker_starts(tmp_path, monkeypatch, capsys, changes, expected):
    path = write_config(tmp_path, **changes)
    assert expected in fail(monkeypatch, capsys, "--config", str(path))
    assert not (tmp_path / "scores").exists()
    assert not (tmp_path / "judgements").exists()


def test_a_model_without_a_reward_head_is_refused_before_any_worker_starts(tmp_path, monkeypatch, capsys):
    model = save_tiny_model(tmp_path / "causal")
    path = write_config(tmp_path, judge={"kind": "reward", "reward": {"model": str(model)}})
    assert "expected a sequence classifier with one" in fail(monkeypatch, capsys, "--config", str(path))


def test_the_grader_refuses_prompts_of_one_s_own_before_any_worker_starts(tmp_path, monkeypatch, capsys):
    own = {**record(tasks(1)[0], []), "messages": [{"role": "user", "content": "What is love?"}]}
    sample_stage(tmp_path / "samples", [record(task, variations(task)) for task in tasks(3)] + [own])
    line = fail(monkeypatch, capsys, "--config", str(write_config(tmp_path)))
    assert "judge.kind: grader: 'What is love?' is no atlas prompt" in line
    assert not (tmp_path / "judgements").exists()


@pytest.mark.parametrize("shard", ["samples-00000.jsonl", "samples-00001.jsonl"])
def test_samples_without_one_of_their_shards_are_refused(tmp_path, monkeypatch, capsys, shard):
    path = write_config(tmp_path)
    (tmp_path / "samples" / shard).unlink()
    line = fail(monkeypatch, capsys, "--config", str(path))
    assert (
        f"{shard}: no such file, though its stage is finished; copy it again, or make its stage anew" in line
    )


def test_another_stage_s_output_is_refused(tmp_path, monkeypatch, capsys):
    output = StageOutput(tmp_path / "samples", "annotate", {"a": 1}, {})
    output.start()
    output.finish({}, "test")
    line = fail(monkeypatch, capsys, "--config", str(write_config(tmp_path)))
    assert "holds stage 'annotate', expected 'sample'" in line


def test_weight_and_judge_decide_the_stage_and_its_judge_alone_the_verdicts(tmp_path):
    path = write_config(tmp_path)
    four, one = (load_config(path, ScoreConfig, [f"quality_weight={weight}"]) for weight in (4, 1))
    workers = load_config(path, ScoreConfig, ["workers.threads=3", "name=other"])
    assert score.stage(four).identity != score.stage(one).identity
    assert score.stage(four).identity == score.stage(workers).identity
    assert score.judgements(four).output_dir == score.judgements(one).output_dir


def test_answers_that_are_sampled_again_are_judged_again(tmp_path):
    config = load_config(write_config(tmp_path), ScoreConfig)
    before = score.judgements(config).output_dir
    for answers, is_other in ((variations, False), (lambda task: variations(task)[1:], True)):
        shutil.rmtree(tmp_path / "samples")
        # The same prompts: the stage has the identity that it had.
        sample_stage(tmp_path / "samples", [record(task, answers(task)) for task in tasks(4)])
        assert (score.judgements(config).output_dir != before) == is_other


@pytest.mark.parametrize("name", ["atlas", "teacher", "reward"])
def test_the_shipped_configurations_are_valid(name):
    config = load_config(ROOT / "configs" / "score" / f"{name}.yaml", ScoreConfig)
    assert config.weight == 4


def test_verdicts_and_scores_stay_where_rejudge_finds_no_key(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path, judge={"kind": "teacher", "teacher": {"endpoint": ENDPOINT}})
    config = load_config(path, ScoreConfig)
    made = [score.judgements(config), score.stage(config)]
    for output in made:
        output.start()
        output.finish({}, "v1")
    assert "JUDGE_KEY is not set" in fail(monkeypatch, capsys, "--config", str(path), "--rejudge")
    assert all(read_manifest(output.output_dir) for output in made)


@pytest.mark.slow
def test_scores_stay_where_a_restart_finds_no_pair_in_the_verdicts_that_are_there(tmp_path, monkeypatch):
    def in_process(make, shards, on_result, *_):
        work = make()
        for number, path in shards.items():
            on_result(number, work(path))

    monkeypatch.setattr(score, "run_shards", in_process)
    path = write_config(tmp_path, tracking={"mode": "disabled"})
    config = load_config(path, ScoreConfig)
    assert score.run(config) == 0
    made = read_manifest(config.output_dir)
    with pytest.raises(UserError, match="no pair to learn from in 4 prompts"):
        score.run(load_config(path, ScoreConfig, ["min_gap=1000"]), restart=True)
    assert made is not None
    assert read_manifest(config.output_dir) == made
    assert score.run(config, restart=True) == 0
    assert read_manifest(config.output_dir) is not None


@pytest.mark.parametrize("why", ["fails", "locked"])
@pytest.mark.parametrize("rejudge", [False, True])
def test_scores_stay_where_verdicts_cannot_be_made(tmp_path, monkeypatch, why, rejudge):
    def fails(*_):
        raise UserError("the judge's model cannot be loaded")

    monkeypatch.setattr(score, "run_shards", fails)
    config = load_config(write_config(tmp_path, tracking={"mode": "disabled"}), ScoreConfig)
    output, verdicts = score.stage(config), score.judgements(config).output_dir
    output.start()
    output.finish({}, "v1")
    lock = sole_writer(verdicts) if why == "locked" else nullcontext()
    with lock, pytest.raises(UserError):
        score.run(config, restart=True, rejudge=rejudge)
    # A judge that fails after --rejudge has forgotten the verdicts that the scores came from.
    assert (read_manifest(config.output_dir) is None) == (rejudge and why == "fails")


def test_verdicts_in_the_output_are_refused(tmp_path):
    path = write_config(tmp_path, judgements_dir=str(tmp_path / "scores" / "judged"))
    with pytest.raises(UserError, match=r"judgements_dir: .*lies in output_dir"):
        score.stage(load_config(path, ScoreConfig))
