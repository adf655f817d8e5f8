"""Preference pairs: two annotated answers to one prompt, a better and a worse one, each a row of its own.

A prepared directory holds ``train/`` and, if asked for, ``eval/`` (Arrow), ``tokenizer/`` and ``manifest.json``. It is
named after a fingerprint of everything that it was made from, and appears only when it is complete.
"""

import hashlib
import itertools
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, Value, concatenate_datasets, load_from_disk
from torch import Tensor

from pasta.data.collate import ThreadCollator
from pasta.data.dataset import data_fingerprint, prepare_once
from pasta.data.encoding import BLOCK_ANSWERS, Row, in_processes
from pasta.data.linearise import Example, Messages, example_of, make_example
from pasta.data.packing import FEATURES, packed_row
from pasta.data.sections import PairsSection
from pasta.errors import UserError
from pasta.files import read_lines, reading
from pasta.interpreter import IGNORE, ConstraintError, linearise
from pasta.lang import Codec, CodecError, Document, encode_messages, parse
from pasta.rows import asked, messages_of, numbered, placed, read_rows, text_of
from pasta.stages.progress import Progress

PAIRS_FILE = "pairs.jsonl"
SIDES = ("chosen", "rejected")
REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")
PAIR_FEATURES = Features({**{side: dict(FEATURES) for side in SIDES}, "length": Value("int32")})
# A change of the columns or of what they mean makes older directories stale.
FORMAT = 4
_ROW = '{"messages": [{"role", "content"}], "chosen": text form, "rejected": text form}'


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with its better and its worse answer; ``chosen_ids`` and ``rejected_ids`` are the tokens that these were
    sampled in, in storage order with end-of-text, or None."""

    messages: Messages
    chosen: Document
    rejected: Document
    chosen_ids: list[int] | None = None
    rejected_ids: list[int] | None = None


@dataclass(frozen=True, slots=True)
class PreparedPairs:
    """A prepared directory and its counts. Tokens are of both sequences of every pair in it, prompts included.

    Left out are ``num_too_long`` pairs with a sequence longer than ``max_length`` and ``num_equal`` pairs of one
    answer with itself.
    """

    path: Path
    num_pairs: int
    num_eval_pairs: int
    num_tokens: int
    num_too_long: int
    num_equal: int
    reused: bool


def pairs_file(source: Path) -> Path:
    """The JSONL file at ``source``, or the one in the stage directory ``source``. Raises UserError if there is none."""
    path = source / PAIRS_FILE if os.path.isdir(source) else source
    if not os.path.isfile(path):
        raise UserError(
            f"data.source: {path}: no such file; expected a JSONL file of pairs, or a stage directory with "
            f"{PAIRS_FILE} in it"
        )
    return path


def pair_of(row: Row) -> Pair:
    """The pair in a row; other keys of it are ignored. Raises UserError, naming its place, for a broken one."""
    place, values = row
    with placed(place):
        messages, texts = asked(messages_of(values)), [text_of(values, side) for side in SIDES]
    documents = []
    for side, text in zip(SIDES, texts, strict=True):
        with placed(f"{place}: {side}"):
            documents.append(parse(text))
    chosen_ids, rejected_ids = (_ids(values.get(f"{side}_ids")) for side in SIDES)
    return Pair(messages, documents[0], documents[1], chosen_ids, rejected_ids)


def _ids(value: Any) -> list[int] | None:
    """Token ids; None for anything else, since a file may have a key of this name for other reasons."""
    whole = isinstance(value, list) and bool(value) and all(type(each) is int for each in value)
    return value if whole else None


def prepare_pairs(
    options: PairsSection, tokenizer: Any, cache_dir: Path, num_processes: int = 1, name: str = "pairs"
) -> PreparedPairs:
    """Make the data set of ``options`` under ``cache_dir``, or find it made before. Where there is much of it, says
    after ``name`` how far it is.

    Raises UserError for a missing or broken file, and when no pair is left to train on.
    """
    source = pairs_file(options.source)
    write = partial(_write, source, options, tokenizer, num_processes, name)
    path, counts, reused = prepare_once(
        cache_dir / _fingerprint(source, options, tokenizer), tokenizer, write
    )
    return PreparedPairs(path=path, reused=reused, **counts)


def pair_dataset(pairs: Iterable[tuple[Example, Example]]) -> Dataset:
    """A data set in memory of ``PAIR_FEATURES`` from (chosen, rejected) examples."""
    columns: dict[str, list[Any]] = {name: [] for name in PAIR_FEATURES}
    for pair in pairs:
        for side, example in zip(SIDES, pair, strict=True):
            columns[side].append(packed_row([example]))
        columns["length"].append(max(map(len, pair)))
    return Dataset.from_dict(columns, features=PAIR_FEATURES)


@dataclass(frozen=True, slots=True)
class PairCollator:
    """A batch of N pairs as 2N sequences, the chosen ones first.

    The batch holds what ``ThreadCollator`` gives, except ``labels``, and ``completion_mask`` [2N, S], 1 where a row
    predicts a token of the answer. Log-probabilities [N] that were computed before come along under their names.
    """

    pad_id: int
    multiple: int = 64

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = ThreadCollator(self.pad_id, self.multiple)([row[side] for side in SIDES for row in rows])
        del batch["labels"]  # the trainer makes labels of its own; ``shift_labels`` replace them
        batch["completion_mask"] = (batch["shift_labels"] != IGNORE).long()
        if all(name in rows[0] for name in REFERENCE):
            for name in REFERENCE:
                batch[name] = torch.tensor([row[name] for row in rows], dtype=torch.float32)
        return batch


def _write(
    source: Path, options: PairsSection, tokenizer: Any, num_processes: int, name: str, directory: Path
) -> dict[str, int]:
    found = sum(1 for _ in numbered(read_lines(source, key="data.source")))
    rows, firsts = read_rows(source, key="data.source", row=_ROW), range(0, found, BLOCK_ANSWERS)
    progress = Progress(name, found, "pairs") if len(firsts) > 1 else None
    tasks = (
        (first, list(itertools.islice(rows, BLOCK_ANSWERS)), directory / f"pairs-{first}") for first in firsts
    )
    make = partial(_make_shards, source, options, tokenizer)
    lengths, num_too_long, num_equal, shards = array("q"), 0, 0, list[Path]()
    for shard in in_processes(make, tasks, min(num_processes, len(firsts))):
        lengths.extend(shard.lengths)
        num_too_long += shard.num_too_long
        num_equal += shard.num_equal
        shards += [shard.path] if shard.lengths else []
        if progress is not None:
            progress.add(len(shard.lengths) + shard.num_too_long + shard.num_equal)
    cut = len(lengths) - options.eval_pairs
    if cut < 1:
        raise UserError(
            f"data.source: {source}: no pair to train on: {len(lengths)} usable, {num_too_long} longer than "
            f"data.max_length={options.max_length}, {num_equal} of equal answers, data.eval_pairs="
            f"{options.eval_pairs} held out"
        )
    taken = min(cut, options.pairs or cut)
    usable = concatenate_datasets([load_from_disk(str(shard)) for shard in shards])
    usable.select(range(taken)).save_to_disk(str(directory / "train"))
    if options.eval_pairs:
        usable.select(range(cut, len(lengths))).save_to_disk(str(directory / "eval"))
    for path in shards:
        shutil.rmtree(path)
    return {
        "num_pairs": taken,
        "num_eval_pairs": len(lengths) - cut,
        "num_tokens": sum(lengths[:taken]) + sum(lengths[cut:]),
        "num_too_long": num_too_long,
        "num_equal": num_equal,
    }


@dataclass(frozen=True, slots=True)
class _Shard:
    """A data set of pairs at ``path``, unless there are none; ``lengths`` are the tokens of each, both sides."""

    path: Path
    lengths: list[int]
    num_too_long: int
    num_equal: int


def _make_shards(
    source: Path, options: PairsSection, tokenizer: Any
) -> Callable[[tuple[int, Sequence[Row], Path]], _Shard]:
    codec = Codec(tokenizer)

    def work(task: tuple[int, Sequence[Row], Path]) -> _Shard:
        before, rows, path = task
        made, num_too_long, num_equal = list[tuple[Example, Example]](), 0, 0
        for number, pair in enumerate(map(pair_of, rows), start=before + 1):
            if pair.chosen == pair.rejected:
                num_equal += 1
                continue
            with placed(f"data.source: {source}: pair {number}"):
                chosen = _example(codec, pair.messages, pair.chosen, pair.chosen_ids)
                rejected = _example(codec, pair.messages, pair.rejected, pair.rejected_ids)
            if max(len(chosen), len(rejected)) > options.max_length:
                num_too_long += 1
                continue
            made.append((chosen, rejected))
        if made:
            pair_dataset(made).save_to_disk(str(path))
        return _Shard(
            path, [len(chosen) + len(rejected) for chosen, rejected in made], num_too_long, num_equal
        )

    return work


def _example(codec: Codec, messages: Messages, document: Document, ids: list[int] | None) -> Example:
    """The example of an answer in the tokens that it was sampled in, if they spell it for this tokenizer.

    A model does not always spell a text as its tokenizer does, and the spelling that it did not choose may be e^50
    times less likely.
    """
    if ids is not None and ids[-1] in codec.eos_ids:
        with suppress(CodecError, ConstraintError, OverflowError):
            if codec.decode(ids[:-1]) == document:
                return example_of(linearise(codec.grammar, encode_messages(codec, messages), ids))
    return make_example(codec, messages, document, "pasta")


def _fingerprint(source: Path, options: PairsSection, tokenizer: Any) -> str:
    values = {"kind": "pairs", "format": FORMAT, **asdict(options)}
    del values["source"]
    with reading(source, key="data.source"), source.open("rb") as file:
        values["content"] = hashlib.file_digest(file, "sha256").hexdigest()
    return data_fingerprint(values, tokenizer)
