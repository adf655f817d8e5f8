"""The annotate job as a user runs it: on Ray workers, interrupted, resumed, refused."""

import copy
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import annotate
from jobs.annotate import FinishedShard
from jobs.benchmark_annotate import steady_rate
from pasta.cli.check import check_file
from pasta.config import load_config
from pasta.data.annotate.annotator import TeacherUsage
from pasta.data.annotate.finished import ShardResult
from pasta.data.atlas.tasks import iter_corpus
from pasta.data.dataset import prepare_data
from pasta.data.sections import DataSection
from pasta.data.sources import Shard
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.stages.stage import read_manifest
from tests.data.annotate.test_teacher import KEY, RECORDS, is_probe, truth
from tests.support.endpoint import completion, endpoint_server
from tests.support.interrupts import press_and_swallow
from tests.support.paths import ROOT
from tests.support.service import command, eventually
from tests.support.tokenizers import byte_level

WAIT_S = 300.0
ITEM = "it is made of leaves or beans and water, and it is mostly served hot, in a cup, with a biscuit."


def write_config(directory: Path, **changes: Any) -> Path:
    """A small run over ten records, one line of them broken; ``changes`` have dotted keys with _ for dots."""
    answer = "Drinks:\n" + "\n".join(f"- Drink {n}: {ITEM}" for n in range(4))
    lines = [json.dumps({"instruction": f"Name drinks, {n}.", "output": answer}) for n in range(10)]
    lines[3] = lines[3][:20]
    (directory / "data.jsonl").write_text("\n".join(lines) + "\n")
    if not (directory / "tokenizer").exists():
        byte_level().save_pretrained(directory / "tokenizer")
    config: dict[str, Any] = {
        "name": "tiny",
        "output_dir": str(directory / "out"),
        "run_dir": str(directory / "runs"),
        "data": {
            "source": {"path": str(directory / "data.jsonl")},
            "annotator": "syntactic",
            "tokenizer": str(directory / "tokenizer"),
            "shard_records": 4,
        },
        "workers": {"num_workers": 2},
        "tracking": {"mode": "disabled"},
    }
    config = copy.deepcopy(config)
    for dotted, value in changes.items():
        *keys, last = dotted.split("__")
        section = config
        for key in keys:
            section = section.setdefault(key, {})
        section[last] = value
    path = directory / "annotate.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def teacher(url: str, **endpoint: Any) -> dict[str, Any]:
    section = {
        "base_url": url,
        "model": "m",
        "api_key_env": "PASTA_TEST_KEY",
        "retries": 1,
        "backoff_s": 0.01,
    }
    return {"endpoint": {**section, **endpoint}}


def run(path: Path, *arguments: str) -> int:
    return annotate.main(["--config", str(path), *arguments])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray")
def test_a_run_leaves_data_that_check_and_training_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path, tracking__mode="offline")
    assert run(path) == 0
    printed = capsys.readouterr().out
    assert f"broken        {tmp_path}/data.jsonl:4: not JSON" in printed
    assert "annotated     9 (100.0% of the kept)" in printed
    out = tmp_path / "out"
    assert sorted(file.name for file in out.glob("*-*.jsonl")) == [
        *(f"annotated-0000{n}.jsonl" for n in range(3)),
        "rejects-00000.jsonl",
    ]
    assert all(check_file(file, "words", "annotated") == 0 for file in out.glob("annotated-*.jsonl"))
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads((out / "manifest.json").read_text())["figures"] == summary
    assert summary["annotated"] == 9
    assert list((tmp_path / "runs").rglob("*.wandb"))
    options = DataSection(source=str(out), mode="pasta", row_length=2000, max_length=4000)
    assert prepare_data(options, byte_level(), tmp_path / "prepared").num_documents == 9
    # The same again, and then something else in the same place.
    assert run(path) == 0
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="shard_records 4 instead of 5"):
        run(path, "--set", "data.shard_records=5")


def answered(body: dict[str, Any]) -> Any:
    """The right annotation, or the answer to a trivial question."""
    return completion("yes" if is_probe(body) else truth(body))


@pytest.mark.parametrize("part", ["teacher", "independence judge"])
def test_a_key_that_is_refused_at_once_is_told_before_any_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setenv("PASTA_TEST_KEY", KEY)
    monkeypatch.setattr(annotate, "run_shards", lambda *_: pytest.fail("workers were started"))

    def locked(body: dict[str, Any], _: int) -> Any:
        return (401, {"error": {"message": "bad key"}}) if body["model"] == part else completion("yes")

    with endpoint_server(locked) as server:
        section = {
            **teacher(server.url, model="teacher"),
            "independence_judge": teacher(server.url, model="independence judge"),
        }
        path = write_config(tmp_path, data__annotator="teacher", data__teacher=section)
        with pytest.raises(UserError, match=r"refused the key in PASTA_TEST_KEY \(HTTP 401\); check it$"):
            run(path)


def test_a_teacher_that_does_not_answer_yet_is_told_before_workers_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PASTA_TEST_KEY", KEY)

    def begins(*_: object) -> None:
        raise UserError("workers have begun")

    monkeypatch.setattr(annotate, "run_shards", begins)
    with endpoint_server(lambda *_: (503, {"error": {"message": "loading"}})) as server:
        path = write_config(tmp_path, data__annotator="teacher", data__teacher=teacher(server.url))
        with pytest.raises(UserError, match="workers have begun"):
            run(path)
    (told,) = [line for line in capsys.readouterr().err.splitlines() if server.url in line]
    where = f"data.teacher.endpoint.base_url {server.url}"
    assert told.endswith(f"{where}: HTTP 503: loading; it must answer once the workers have started")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray")
def test_a_refused_key_stops_the_run_and_a_good_one_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASTA_TEST_KEY", KEY)
    data = tmp_path / "teach.jsonl"
    data.write_text("".join(json.dumps({"prompt": "?", "answer": r.answer}) + "\n" for r in RECORDS))

    def locked(body: dict[str, Any], number: int) -> Any:
        return answered(body) if number < 6 else (401, {"error": {"message": "bad key"}})

    with endpoint_server(locked) as server:
        settings: dict[str, Any] = {"data__annotator": "teacher", "data__source": {"path": str(data)}}
        settings["data__checks"] = {"min_speedup": 0.0}
        settings["workers__num_workers"] = 1
        # One after another: an answer that comes after the refusal is lost, and asked for again.
        path = write_config(tmp_path, **settings, data__teacher=teacher(server.url, concurrency=1))
        with pytest.raises(UserError, match=r"PASTA_TEST_KEY.*1 of 2 shards are finished and kept") as caught:
            run(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    with endpoint_server(lambda body, _: answered(body)) as server:
        write_config(tmp_path, **settings, data__teacher=teacher(server.url, concurrency=1))
        assert run(path) == 0
    # A trivial question, and two records: what was answered before the key was refused is not asked again.
    assert len(server.requests) == 1 + 2
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["kept"], summary["usage"]["requests"]) == (7, 7)
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in written if KEY.encode() in file.read_bytes()]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray")
def test_a_full_disk_keeps_what_is_finished_and_a_larger_one_ends_the_run(
    tmp_path: Path, small_disk: Path
) -> None:
    source = {"path": "atlas", "records": 800, "seed": 1}
    settings: dict[str, Any] = {
        "data__source": source,
        "data__shard_records": 200,
        "data__annotator": "atlas",
        "workers__num_workers": 1,
    }
    path = write_config(tmp_path, **settings, output_dir=str(small_disk / "out"))
    with pytest.raises(
        UserError, match=r"cannot be written \(No space left on device\); \d of 4 shards"
    ) as caught:
        run(path)
    assert "\n" not in str(caught.value)
    kept = sorted(small_disk.glob(".out.*.partial/shard-*.json"))
    assert kept
    assert not (small_disk / "out").exists()
    times = [file.stat().st_mtime_ns for file in kept]
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert run(path) == 0
    assert len(list((small_disk / "out").glob("shard-*.json"))) == 4
    assert [(small_disk / "out" / file.name).stat().st_mtime_ns for file in kept] == times


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray")
def test_an_interrupted_run_goes_on_shard_by_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"path": "atlas", "records": 2000, "seed": 1}
    path = write_config(tmp_path, data__source=source, data__shard_records=50)
    with command("-m", "jobs.annotate", "--config", path, log=tmp_path / "log") as job:
        finished = lambda: list(tmp_path.glob(".out.*.partial/shard-*.json"))
        assert eventually(lambda: finished() or job.process.poll() is not None, WAIT_S), job.output
        assert job.end(signal.SIGINT, WAIT_S) == 130, job.output
        assert "the same command goes on after the last finished shard" in job.output
    assert not (tmp_path / "out").exists()
    done = {file.name for file in finished()}
    assert 0 < len(done) < 40
    assert run(path) == 0
    assert f"40 shards, {len(done)} found from an earlier run" in capsys.readouterr().out
    assert sum(len(file.read_text().splitlines()) for file in (tmp_path / "out").glob("annotated-*")) == 2000


def test_an_interrupt_between_shards_loses_none_and_the_next_run_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver alone: the same worker, called here, one shard after another."""
    done: list[int] = []

    def one_by_one(stop_after: int) -> Any:
        def run_shards(make: Any, shards: dict[int, Shard], finished: Any, *_: Any) -> None:
            work = make()
            for count, (number, shard) in enumerate(shards.items()):
                if count == stop_after:
                    raise KeyboardInterrupt
                done.append(number)
                finished(number, work(shard))

        return run_shards

    path = write_config(tmp_path)
    monkeypatch.setattr(annotate, "run_shards", one_by_one(2))
    with pytest.raises(KeyboardInterrupt):
        run(path)
    assert "goes on after the last finished shard" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(annotate, "run_shards", one_by_one(9))
    assert run(path) == 0
    assert done == [0, 1, 2]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["records"] == 10


@pytest.mark.e2e
def test_ctrl_c_that_ray_has_swallowed_ends_the_run_all_the_same(
    ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python forgets what is raised in a finalizer, and Ray's objects have many."""
    line = annotate.rates_line
    shown: list[float] = []

    def swallow(figures: Any) -> str:
        shown.append(figures["records"])
        press_and_swallow()
        return line(figures)

    path = write_config(tmp_path, workers__num_workers=1)
    monkeypatch.setattr(annotate, "rates_line", swallow)
    with pytest.raises(KeyboardInterrupt):
        run(path)
    assert len(shown) == 1
    assert "goes on after the last finished shard" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(path) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["records"] == 10


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"data__sorce": "x"}, "data: unknown key 'sorce' (did you mean 'source'?)"),
    "wrong type": ({"data__shard_records": "many"}, "data.shard_records"),
    "no shards": ({"data__shard_records": 0}, "shard_records 0: expected a positive integer"),
    "missing data": ({"data__source": {"path": "./gone.jsonl"}}, "source.path: ./gone.jsonl: no such file"),
    "missing tokenizer": ({"data__tokenizer": "./gone"}, "tokenizer: ./gone: no such directory"),
    "unknown annotator": ({"data__annotator": "oracle"}, "data.annotator"),
    "no endpoint": ({"data__annotator": "teacher"}, "expected the section that names endpoint and model"),
    "no key": (
        {"data__annotator": "teacher", "data__teacher": teacher("http://127.0.0.1:1/v1")},
        "data.teacher.endpoint.api_key_env: PASTA_TEST_KEY is not set; export it",
    ),
    "no judge's key": (
        {
            "data__annotator": "teacher",
            "data__teacher": {
                **teacher("http://127.0.0.1:1/v1", api_key_env=None),
                "independence_judge": teacher("http://127.0.0.1:1/v1"),
            },
        },
        "data.teacher.independence_judge.endpoint.api_key_env: PASTA_TEST_KEY is not set; export it",
    ),
    "all alike": (
        {"data__annotator": "teacher", "data__teacher": {**teacher("http://127.0.0.1:1/v1"), "proposals": 4}},
        "proposals 4: expected a temperature above 0",
    ),
    "no effect": ({"data__annotator": "atlas", "data__syntactic": {"lists": False}}, "has no effect"),
    "no workers": ({"workers__num_workers": 0}, "num_workers 0"),
    "no atlas number": ({"data__source": {"path": "atlas"}}, "expected the number of atlas tasks"),
    "no truth for the router": (
        {"data__annotator": "sot", "data__routed": True},
        "data.routed: expected the atlas, whose truth it reads; no record of data.jsonl is one of its tasks",
    ),
    "no truth": (
        {"data__annotator": "atlas"},
        "data.annotator atlas: expected the atlas, whose truth it reads",
    ),
    "no truth by looks": (
        {"data__annotator": "imperfect"},
        "data.annotator imperfect: expected the atlas, whose",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_line_and_exit_code_2_before_any_worker_starts(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, expected = CASES[case]
    path = write_config(tmp_path, **changes)
    monkeypatch.setattr(annotate, "run_shards", lambda *_: pytest.fail("workers were started"))
    with pytest.raises(SystemExit) as error:
        run_main(lambda: run(path))
    assert error.value.code == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert expected in line.replace(f"{tmp_path}/", "")
    assert not (tmp_path / "out").exists()


def test_the_router_learns_from_a_file_in_which_the_first_records_are_not_the_atlas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth about a task goes by its prompt, wherever the record stands."""
    path = write_config(tmp_path, data__annotator="sot", data__routed=True)
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": next(iter_corpus(1, "train", 1)).prompt, "answer": "No."}) + "\n")

    def started(*_: Any) -> None:
        raise UserError("workers were started")

    monkeypatch.setattr(annotate, "run_shards", started)
    with pytest.raises(UserError, match="workers were started"):
        run(path)


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} ", "…"])
def test_a_key_that_cannot_be_sent_is_named_and_not_shown(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret's file often ends with a line break, and guides write … for a key."""
    monkeypatch.setenv("PASTA_TEST_KEY", key)
    monkeypatch.setattr(annotate, "run_shards", lambda *_: pytest.fail("workers were started"))
    path = write_config(tmp_path, data__annotator="teacher", data__teacher=teacher("http://127.0.0.1:1/v1"))
    with pytest.raises(UserError, match="PASTA_TEST_KEY holds what no key has: a line break") as caught:
        run(path)
    assert key.strip() not in str(caught.value)


@pytest.mark.parametrize("kept", [False, True])
def test_data_stay_where_a_restart_gets_no_answer(tmp_path, monkeypatch, kept):
    def fails(make, left, *_):
        if kept:  # a shard that another worker has finished, which the error overtakes
            make()(left[0])
        raise UserError("the endpoint cannot be reached")

    monkeypatch.setattr(annotate, "run_shards", fails)
    path = write_config(tmp_path)
    output = annotate.stage(load_config(path, annotate.AnnotateConfig))
    output.start()
    output.finish({}, "v1")
    with pytest.raises(UserError, match=f"cannot be reached; {int(kept)} of 3 shards are finished and kept"):
        run(path, "--restart")
    # The same command without --restart goes on with what is kept.
    assert (read_manifest(output.output_dir) is None) == kept


def test_what_is_finished_needs_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, data__annotator="teacher", data__teacher=teacher("http://127.0.0.1:1/v1"))
    output = annotate.stage(load_config(path, annotate.AnnotateConfig))
    output.start()
    output.finish({}, "v1")
    assert run(path) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["atlas", "atlas-teacher", "slimorca", "alpaca-syntactic"])
def test_shipped_configurations_are_valid(name: str) -> None:
    config = load_config(ROOT / "configs" / "annotate" / f"{name}.yaml", annotate.AnnotateConfig)
    assert config.name == name


def test_limits_of_the_teacher_are_no_part_of_what_the_output_is() -> None:
    path = ROOT / "configs" / "annotate" / "slimorca.yaml"
    one, two, three = (
        load_config(path, annotate.AnnotateConfig, overrides).data.identity()
        for overrides in ([], ["data.teacher.endpoint.concurrency=1"], ["data.teacher.endpoint.model=other"])
    )
    assert one == two != three


def test_another_tokenizer_in_the_same_directory_makes_another_output(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), annotate.AnnotateConfig)
    first = annotate.stage(config)
    assert annotate.stage(config).identity == first.identity
    file = tmp_path / "tokenizer/tokenizer.json"
    file.write_text(file.read_text().replace("  ", " "))
    assert annotate.stage(config).identity != first.identity


def test_the_rate_counts_only_while_all_workers_are_busy() -> None:
    def shard(worker: int, at: float) -> FinishedShard:
        return FinishedShard(ShardResult(0, 10, 10, 0, {}, {}, [], TeacherUsage(), 1.0), worker, at)

    finished = [shard(1, 1.0), shard(1, 2.0), shard(2, 2.5), shard(1, 3.0), shard(2, 3.5), shard(1, 4.0)]
    assert steady_rate(finished, 2) == (20.0, 20)
    with pytest.raises(UserError, match="too few"):
        steady_rate(finished[:2], 2)


@pytest.mark.parametrize(("workers", "judges", "expected"), [(2, 8, 2), (16, 8, 4), (3, 1, 1)])
def test_there_are_no_more_workers_than_requests_may_be_under_way(tmp_path, workers, judges, expected):
    """Each worker has one request under way at least."""
    section = teacher("http://localhost:9", concurrency=4)
    section["independence_judge"] = teacher("http://localhost:9", concurrency=judges)
    path = write_config(
        tmp_path, data__annotator="teacher", data__teacher=section, workers__num_workers=workers
    )
    config = load_config(path, annotate.AnnotateConfig)
    assert annotate._within_limits(config).num_workers == expected
