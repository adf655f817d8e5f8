"""Which pairs of a file are trained on, and which are held out."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from pasta.data.pairs import prepare_pairs
from pasta.data.sections import PairsSection
from pasta.lang import parse
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
