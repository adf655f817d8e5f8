"""Which pairs of a file are trained on, and which are held out."""

import json
from pathlib import Path

from datasets import load_from_disk

from pasta.data.pairs import prepare_pairs
from pasta.data.sections import PairsSection
from tests.support.tokenizers import byte_level
from tests.training.pair_runs import pair_line


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
