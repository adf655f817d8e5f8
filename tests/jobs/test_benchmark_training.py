"""The benchmark of training runs a recipe as it is beside TRL's own trainers, and refuses what it cannot measure."""

import json
from pathlib import Path

import pytest
from datasets import load_from_disk

from jobs.benchmark_training import main
from pasta.data.pairs import SIDES, PairCollator, prepare_pairs
from pasta.errors import UserError
from pasta.interpreter import IGNORE
from pasta.training import sft
from pasta.training.stock import OURS, STOCK, plain_pairs, plain_rows
from tests.support.paths import ROOT
from tests.training import pair_runs, runs


@pytest.fixture(autouse=True)
def memory_is_given_back(monkeypatch):
    """What the benchmark asks of the allocator would hold for pytest's process to its end."""
    monkeypatch.setattr("pasta.training.stock.keep_freed_memory", lambda: None)


def _run(kind: str, config: Path, tmp_path: Path, *options: str) -> Path:
    out = tmp_path / "out.json"
    assert main([kind, "--config", str(config), "--out", str(out), *options]) == 0
    return out


def sft_file(directory: Path) -> Path:
    return runs.write_config(directory, runs.sft_dict(directory, warmup_steps=5))


def preference_file(directory: Path) -> Path:
    return pair_runs.write_config(directory, pair_runs.preference_dict(directory))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), [("sft", sft_file), ("preference", preference_file)])
def test_every_way_to_train_is_measured(kind, make, tmp_path):
    out = _run(kind, make(tmp_path), tmp_path, "--rounds", "2", "--steps", "1")
    metrics = {f["key"]: f for f in json.loads(out.read_text())["figures"]}
    assert metrics.keys() == {f"{kind}.{way}" for way in (OURS, *STOCK)} | {
        f"{kind}.ratio.{way}" for way in STOCK
    }
    assert all(metric["value"] > 0 for metric in metrics.values())
    assert [metrics[f"{kind}.ratio.{way}"]["target"] for way in STOCK].count(0.95) == 1


def test_plain_rows_have_the_tokens_of_ours_and_as_many_are_learned(tmp_path):
    path = sft.prepare(runs.sft_config(tmp_path), tmp_path / "cache").path
    ours = load_from_disk(str(path / "train"))
    plain = plain_rows(ours)
    assert plain["input_ids"] == ours["input_ids"]
    assert plain["length"] == ours["length"]
    for row, labels in zip(ours, plain["labels"], strict=True):
        learned = sum(target != IGNORE for target in row["shift_labels"])
        assert sum(label != IGNORE for label in labels) == learned > 0
        assert all(label in (IGNORE, token) for label, token in zip(labels, row["input_ids"], strict=True))


def test_plain_pairs_have_the_lengths_of_ours_and_begin_with_the_prompt(tmp_path):
    config = pair_runs.preference_config(pair_runs.preference_dict(tmp_path))
    ours = load_from_disk(
        str(prepare_pairs(config.data, pair_runs.TOKENIZER, tmp_path / "cache").path / "train")
    )
    for row, plain in zip(ours, plain_pairs(ours), strict=True):
        for side in SIDES:
            assert plain["prompt_ids"] + plain[f"{side}_ids"] == row[side]["input_ids"]
        learned = PairCollator(pad_id=0, multiple=1)([row])["completion_mask"]
        assert (
            learned[:, : len(plain["prompt_ids"]) - 1].sum() == 0 < learned[0, len(plain["prompt_ids"]) - 1]
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--rounds", "1"), "--rounds: 1, expected at least 2"),
        (("--steps", "0"), "--steps: 0, expected a positive integer"),
        (("--threads", "0"), "--threads: 0, expected a positive integer"),
        (("--device", "gpu"), "--device: 'gpu', expected auto, cpu, cuda or cuda:N"),
        (("--set", "data.source=nowhere.jsonl"), "data.source: nowhere.jsonl"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, options, expected):
    with pytest.raises(UserError) as caught:
        _run("sft", sft_file(tmp_path), tmp_path, *options)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_draft_heads_have_no_peer(tmp_path):
    config = ROOT / "configs/sft/atlas-heads-twin.yaml"
    with pytest.raises(UserError, match="draft_heads: TRL trains none"):
        _run("sft", config, tmp_path, "--set", f"run_dir={tmp_path}")
