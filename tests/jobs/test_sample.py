"""The sample job as a user runs it: interrupted, gone on with, a worker's process killed; what a mistake looks like."""

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml

from jobs import sample
from pasta.candidates.checks import check_sampled_models, check_shared
from pasta.candidates.config import SampleConfig
from pasta.candidates.sampling import load_sampler
from pasta.config import load_config
from pasta.engine.section import EngineSection
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.evaluation.prompts import read_prompts
from pasta.stages.machines import Machines
from pasta.stages.shards import iter_records, split_into_shards
from pasta.stages.stage import read_manifest
from pasta.tracking import Tracker
from tests.support.models import save_misfit_heads, tiny
from tests.support.service import command, save_tiny_model


def write_config(folder: Path, **changes: Any) -> Path:
    """A stage over two tiny models and 24 prompts in shards of two."""
    if not (folder / "pasta").exists():
        save_tiny_model(folder / "pasta")
        other = tiny(seed=1)
        other.model.save_pretrained(folder / "twin")
        other.tokenizer.save_pretrained(folder / "twin")
        prompts = [{"messages": [{"role": "user", "content": f"Question {n}?"}]} for n in range(24)]
        (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    config: dict[str, Any] = {
        "name": "tiny-sample",
        "output_dir": str(folder / "samples"),
        "run_dir": str(folder / "runs"),
        "model": str(folder / "pasta"),
        "twin": str(folder / "twin"),
        "prompts": {"source": str(folder / "prompts.jsonl")},
        "sampling": {"candidates": 3, "promise_bias": 6.0},
        "limits": {"max_tokens": 150, "max_chunk_tokens": 30},
        "engine": {"device": "cpu", "num_slots": 4, "slot_tokens": 256},
        "shard_prompts": 2,
        "workers": {"num_workers": 1, "use_gpu": False},
    }
    path = folder / "sample.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    return path


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_an_interrupted_run_ends_with_the_records_of_an_undisturbed_one(tmp_path):
    path = write_config(tmp_path)
    arguments = ("-m", "jobs.sample", "--config", path)
    with command(*arguments, log=tmp_path / "1.log") as job:
        job.wait_for(r"2/24 prompts .* tokens/s")
        assert job.end(signal.SIGINT, 120) == 130
        assert "the same command goes on after the last finished shard" in job.output
        assert job.leaves_nothing(60)
    assert not (tmp_path / "samples").exists()

    with command(*arguments, log=tmp_path / "2.log") as job:
        assert job.process.wait(500) == 0, job.output
        assert "found from an earlier run" in job.output

    records = list(iter_records(sorted((tmp_path / "samples").glob("samples-*.jsonl"))))
    config = load_config(path, SampleConfig)
    prompts = read_prompts(config.prompts)
    assert [record["id"] for record in records] == [prompt.id for prompt in prompts]
    assert load_sampler(config).sample(prompts[:6]) == records[:6]
    manifest = read_manifest(tmp_path / "samples")
    assert manifest is not None
    assert manifest.figures["candidates"] == 72
    assert manifest.figures["tokens_per_second"] > 0
    assert manifest.figures["formats"] == {"model": ["float32"], "twin": ["float32"]}
    assert [file.name for file in tmp_path.glob(".*")] == []


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_workers_of_two_processes_draw_the_candidates_of_one_and_end_when_one_of_them_does(
    tmp_path, monkeypatch, capfd, ray
):
    path = write_config(tmp_path, workers={"num_workers": 1, "tensor_parallel": 2, "use_gpu": False})
    config = load_config(path, SampleConfig, ["prompts.count=4"])
    write = sample.write_shard

    def kill_a_follower(directory: Path, prefix: str, number: int, records: list[Any]) -> None:
        write(directory, prefix, number, records)
        if number == 0:
            (follower,) = [
                p for p in psutil.Process().children(recursive=True) if ":Follower" in " ".join(p.cmdline())
            ]
            follower.kill()

    monkeypatch.setattr(sample, "write_shard", kill_a_follower)
    assert sample.run(config) == 0
    assert "a worker died; shard 1 is done again" in capfd.readouterr().err
    records = list(iter_records(sorted((tmp_path / "samples").glob("samples-*.jsonl"))))
    assert records == load_sampler(config).sample(read_prompts(config.prompts))


def do_all_on(formats: Iterable[str]) -> Callable[..., None]:
    """``run_shards``, each shard by the next of workers that take these number formats in turn."""
    machines = itertools.cycle({"formats": {"model": name, "twin": "float32"}} for name in formats)
    answers = {"candidates": [{"num_tokens": 10}], "twin": {"num_tokens": 5}}

    def do_all(make, shards, finished, *_):
        for number in shards:
            finished(number, ([{"id": str(number), **answers}], next(machines)))

    return do_all


@pytest.mark.slow
def test_the_manifest_tells_the_number_format_that_each_worker_took_and_a_line_that_they_differ(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sample, "run_shards", do_all_on(["bfloat16", "bfloat16", "float32"]))
    monkeypatch.setattr(sample, "sample_figures", lambda records: {"prompts": float(len([*records]))})
    assert sample.run(load_config(write_config(tmp_path), SampleConfig)) == 0
    manifest = read_manifest(tmp_path / "samples")
    assert manifest is not None
    assert manifest.figures["formats"] == {"model": ["bfloat16", "float32"], "twin": ["float32"]}
    said = capsys.readouterr().err
    assert (
        said.count("tiny-sample: workers have taken different number formats for model (bfloat16, float32)")
        == 1
    )


def test_tokens_of_an_earlier_run_are_tracked_too_but_count_towards_no_rate(tmp_path, monkeypatch):
    tracked: list[dict[str, float]] = []

    class Keeps(Tracker):
        def log(self, figures, step):
            tracked.append(dict(figures))

    monkeypatch.setattr(sample, "run_shards", do_all_on(["bfloat16"]))
    config = load_config(write_config(tmp_path), SampleConfig)
    output = SimpleNamespace(replace=lambda: None)
    work = SimpleNamespace(work_dir=tmp_path / "work", tracker=Keeps(), output=output)
    work.work_dir.mkdir()
    shards = split_into_shards(read_prompts(config.prompts), config.shard_prompts)
    machines = Machines("tiny-sample", work.work_dir)
    sample._sample(config, dict(list(shards.items())[:3]), work, machines, None)
    sample._sample(config, shards, work, machines, None)
    totals = [figures["sample/tokens"] for figures in tracked]
    assert totals == [15.0 * count for count in range(1, len(shards) + 1)]


def test_draft_heads_beside_a_model_that_processes_share_are_refused_unless_they_are_switched_off(tmp_path):
    model = save_tiny_model(tmp_path)
    save_misfit_heads(model)
    with pytest.raises(UserError) as error:
        check_shared(2, [None, str(model)], EngineSection())
    assert str(error.value) == (
        f"engine.draft_heads: true, but workers.tensor_parallel is 2, and draft heads lie beside {model}; "
        "expected false"
    )
    check_shared(2, [str(model)], EngineSection(draft_heads=False))
    check_shared(1, [str(model)], EngineSection())


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake leaves on stderr, before any worker starts."""
    monkeypatch.setattr(sys, "argv", ["jobs.sample", *arguments])
    monkeypatch.setattr(sample, "run_shards", lambda *_: pytest.fail("workers were started"))
    with pytest.raises(SystemExit) as error:
        run_main(sample.main)
    assert error.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"smapling": {}}, "unknown key 'smapling'"),
        ({"shard_prompts": "many"}, "shard_prompts: expected a valid integer"),
        ({"sampling": {"candidates": 1}}, "candidates 1: expected at least 2"),
        ({"limits": {"max_tokens": 0}}, "max_tokens: 0, expected a positive integer"),
        ({"engine": {"dtype": "int2"}}, "dtype: 'int2'"),
        (
            {"engine": {"slot_tokens": 64}},
            "engine.slot_tokens 64: expected at least 152, for a slot holds an answer",
        ),
        (
            {"engine": {"slot_tokens": 160}},
            "engine.slot_tokens: 160, but a slot holds a prompt, of which the short",
        ),
        ({"engine": {"dtype": "fp8", "device": "cpu"}}, "engine.dtype: 'fp8', but fp8 runs on CUDA GPUs"),
        ({"workers": {"tensor_parallel": 0}}, "workers: tensor_parallel 0: expected a positive integer"),
        (
            {"workers": {"tensor_parallel": 4}},
            "workers.tensor_parallel: 4 processes cannot share the model's 2 key-value heads; expected a divisor of 2",
        ),
        (
            {"workers": {"tensor_parallel": 2}, "engine": {"slot_tokens": 256, "dtype": "int8"}},
            "engine.dtype: 'int8', but workers.tensor_parallel is 2; expected one of auto, float32, bfloat16, float16",
        ),
        ({"model": "./gone"}, "model: ./gone: no such directory; train that model first"),
        ({"prompts": {"source": "gone.jsonl"}}, "prompts.source: gone.jsonl: no such file"),
        ({"prompts": {"source": "atlas"}}, "count: expected the number of atlas prompts"),
    ],
)
def test_a_mistake_is_one_line_before_any_worker_starts(tmp_path, monkeypatch, capsys, changes, expected):
    path = write_config(tmp_path, **changes)
    assert expected in fail(monkeypatch, capsys, "--config", str(path))
    assert not (tmp_path / "samples").exists()


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path)
    config = json.loads((tmp_path / "twin" / "config.json").read_text())
    (tmp_path / "twin" / "config.json").write_text(json.dumps(config | {"vocab_size": 64}))
    line = fail(monkeypatch, capsys, "--config", str(path))
    assert "twin: its embedding has 64 rows" in line.replace(str(tmp_path) + "/", "")
    assert "the weights belong to another vocabulary" in line


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("damage", ["a pointer of git-lfs", "a link to nothing"])
def test_weights_that_were_copied_in_part_are_told_before_any_worker_starts(
    tmp_path, monkeypatch, capsys, damage, heads
):
    """Snapshots of the Hub's cache are links; beside draft heads one to nothing ended in a stack trace."""
    path, weights = write_config(tmp_path), tmp_path / "twin" / "model.safetensors"
    if heads:
        save_misfit_heads(tmp_path / "twin")
    weights.unlink()
    if damage == "a link to nothing":
        weights.symlink_to("../../blobs/gone")
    else:
        weights.write_text("version https://git-lfs.github.com/spec/v1\n")
    said = "has not all of a model's weights" if damage == "a link to nothing" else "model.safetensors is cut"
    line = fail(monkeypatch, capsys, "--config", str(path))
    assert line.startswith(f"error: twin: {tmp_path / 'twin'}")
    assert said in line


def test_a_missing_configuration_is_named(monkeypatch, capsys):
    assert "gone.yaml: no such file" in fail(monkeypatch, capsys, "--config", "gone.yaml")


def test_the_shipped_configuration_is_valid_and_its_models_fit_together():
    config = load_config(Path("configs/sample/atlas.yaml"), SampleConfig)
    check_sampled_models(config)
    assert config.sampling.candidates == 10


def test_draft_heads_that_do_not_fit_the_model_are_refused(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path)
    said = save_misfit_heads(tmp_path / "twin")
    assert fail(monkeypatch, capsys, "--config", str(path)) == f"error: twin: {said}"


@pytest.mark.slow
def test_a_slot_too_small_for_the_longest_prompt_is_said_and_sampled_from(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path)
    long = {"messages": [{"role": "user", "content": "What is " + "very " * 30 + "small?"}]}
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    monkeypatch.setattr(sys, "argv", ["jobs.sample", "--config", str(path)])
    monkeypatch.setattr(sample, "run_shards", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sample.main()
    said = capsys.readouterr().err
    assert (
        "engine.slot_tokens: 256 leaves answers to long prompts less than limits.max_tokens (150): " in said
    )


def test_without_limits_an_answer_fits_into_a_slot(tmp_path):
    config = yaml.safe_load(write_config(tmp_path).read_text())
    del config["limits"], config["engine"]
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(config))
    found = load_config(tmp_path / "sample.yaml", SampleConfig)
    assert found.limits.max_tokens == found.engine.slot_tokens // 2 == 1024
