"""Which pairs of a file are trained on, and which are held out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from pasta.data.pairs import prepare_pairs
from pasta.data.sections import PairsSection
from pasta.errors import UserError
from pasta.lang import Chunk, Document, Text, parse, to_text
from tests.support.tokenizers import byte_level
from tests.training.pair_runs import CODEC, pair_line


def test_the_first_pairs_are_trained_on_and_the_same_ones_held_out(tmp_path: Path) -> None:
    source = tmp_path / "pairs.jsonl"
    source.write_text("\n".join(json.dumps(pair_line(seed)) for seed in range(8)) + "\n")
    some, whole = (
        prepare_pairs(PairsSection(source, 4096, eval_pairs=2, pairs=pairs), byte_level(), tmp_path / "data")
        for pairs in (3, None)
    )
    assert (some.num_pairs, some.num_eval_pairs) == (3, 2)
    assert whole.num_pairs == 6
    kept, all_of_them = (load_from_disk(str(prepared.path / "train"))["length"] for prepared in (some, whole))
    assert list(kept) == list(all_of_them)[:3]
    held_out = [load_from_disk(str(prepared.path / "eval")).to_list() for prepared in (some, whole)]
    assert held_out[0] == held_out[1]


def test_tokens_are_those_of_the_pairs_that_are_taken(tmp_path: Path) -> None:
    source = tmp_path / "pairs.jsonl"
    source.write_text("\n".join(json.dumps(pair_line(seed)) for seed in range(8)) + "\n")
    section = PairsSection(source, 4096, eval_pairs=2, pairs=3)
    prepared = prepare_pairs(section, byte_level(), tmp_path / "data")
    taken = [
        row[side]["length"]
        for split in ("train", "eval")
        for row in load_from_disk(str(prepared.path / split))
        for side in ("chosen", "rejected")
    ]
    assert len(taken) == 2 * (3 + 2)
    assert prepared.num_tokens == sum(taken)


@pytest.mark.slow
def test_pairs_are_encoded_in_several_processes_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took one process of many, and all pairs in memory, without a word: 2.8 GB for 20,000."""
    lines = [pair_line(seed) for seed in range(8)]
    lines[3]["rejected"] = lines[3]["chosen"]
    lines[4]["chosen"] = "long " * 4000
    for number in (6, 7):  # a part of which nothing is left
        lines.insert(number, lines[3])
    source = tmp_path / "pairs.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)) + "\n")
    section = PairsSection(source, 4096, eval_pairs=2)
    whole = prepare_pairs(section, byte_level(), tmp_path / "whole")
    assert (whole.num_pairs, whole.num_eval_pairs, whole.num_equal, whole.num_too_long) == (4, 2, 3, 1)
    assert not capsys.readouterr().out
    monkeypatch.setattr("pasta.data.pairs.BLOCK_ANSWERS", 2)
    parts = prepare_pairs(section, byte_level(), tmp_path / "parts", num_processes=2, name="mine")
    assert replace(parts, path=whole.path) == whole
    assert capsys.readouterr().out.startswith("mine: 10 pairs\nmine: 2/10 pairs")
    for split in ("train", "eval"):
        one, several = (load_from_disk(str(each.path / split)).to_list() for each in (whole, parts))
        assert one == several
    assert {path.name for path in parts.path.iterdir()} == {path.name for path in whole.path.iterdir()}


def test_a_pair_that_cannot_be_encoded_is_named_by_its_number_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta.data.pairs.BLOCK_ANSWERS", 2)
    source = tmp_path / "pairs.jsonl"
    large = to_text(Document((Chunk("salt", 1_000_000, (Text("NaCl"),)),)))
    lines = [pair_line(0), pair_line(1), pair_line(2) | {"chosen": large}]
    source.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(
        UserError, match=r"pairs\.jsonl: pair 3: promise 'salt': tokens=1000000, expected at most "
    ):
        prepare_pairs(PairsSection(source, 4096), byte_level(), tmp_path / "data")


#: An answer, and the same in the tokens that a model may have chosen, which are not those of its tokenizer.
TEXT = "The capital of France is Paris."
SPELT = [*(CODEC.encode_text(letter)[0] for letter in TEXT), CODEC.eos_id]
ENCODED = [*CODEC.encode(parse(TEXT)), CODEC.eos_id]


@pytest.mark.parametrize(
    ("ids", "learned"),
    [
        (SPELT, SPELT),
        (None, ENCODED),
        # Tokens of another tokenizer, of none, without their end, and no tokens at all.
        ([*SPELT[:-2], SPELT[0], CODEC.eos_id], ENCODED),
        ([*SPELT[:-1], 1 << 20, CODEC.eos_id], ENCODED),
        ([-1, *SPELT], ENCODED),
        (SPELT[:-1], ENCODED),
        ("of the archive", ENCODED),
    ],
)
def test_an_answer_is_learned_in_the_tokens_it_was_sampled_in(
    tmp_path: Path, ids: Any, learned: list[int]
) -> None:
    assert len(SPELT) > len(ENCODED)
    source = tmp_path / "pairs.jsonl"
    source.write_text(json.dumps({**pair_line(0), "chosen": TEXT, "chosen_ids": ids}) + "\n")
    prepared = prepare_pairs(PairsSection(source, 4096), byte_level(), tmp_path / "data")
    chosen = load_from_disk(str(prepared.path / "train"))[0]["chosen"]
    assert chosen["input_ids"][-len(learned) :] == learned
    assert [label for label in chosen["shift_labels"] if label >= 0] == learned
