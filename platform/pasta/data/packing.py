"""Packs several documents into one row, so that rows are full; documents never see each other.

A packed row keeps each document's own visibility matrix as bits. Dense masks are made on the device, by the
same code that the engine uses.
"""

import bisect
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets, load_from_disk

from pasta.data.linearise import Example

FEATURES = Features(
    {
        "input_ids": List(Value("int32")),
        "position_ids": List(Value("int32")),
        "segment_ids": List(Value("int32")),
        "shift_labels": List(Value("int32")),
        "kinds": List(Value("uint8")),
        "sees": List(Value("uint8")),
        "num_segments": List(Value("int32")),
        "length": Value("int32"),
    }
)
# Windows bound the memory: best fit needs many lengths to choose from, but not the whole corpus.
WINDOW = 4096
#: Rows of a data set that are in memory at once as it is written.
PART_ROWS = 2000


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Indices into ``lengths``, grouped into rows of at most ``row_length`` tokens (best fit, longest first).

    A document that is longer has a row of its own.
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect.bisect_left(open_rows, (lengths[index], -1))
        if lengths[index] >= row_length:
            rows.append([index])
            continue
        if at == len(open_rows):
            rows.append([index])
            left, row = row_length - lengths[index], len(rows) - 1
        else:
            left, row = open_rows.pop(at)
            rows[row].append(index)
            left -= lengths[index]
        bisect.insort(open_rows, (left, row))
    return rows


def packed_row(examples: Sequence[Example]) -> dict[str, Any]:
    """One row of ``FEATURES``: the examples one after the other, segments numbered through."""
    row: dict[str, Any] = {name: [] for name in FEATURES if name != "length"}
    offset = 0
    for example in examples:
        row["input_ids"] += example.input_ids
        row["position_ids"] += example.position_ids
        row["segment_ids"] += [segment + offset for segment in example.segment_ids]
        row["shift_labels"] += example.shift_labels
        row["kinds"] += example.kinds
        row["sees"] += pack_sees(example.sees)
        row["num_segments"].append(len(example.sees))
        offset += len(example.sees)
    row["length"] = len(row["input_ids"])
    return row


def packed_rows(examples: Iterable[Example], row_length: int) -> Iterator[dict[str, Any]]:
    """Rows of ``FEATURES``, packed within windows of ``WINDOW`` examples."""
    left = iter(examples)
    while window := list(itertools.islice(left, WINDOW)):
        for indices in pack([len(example) for example in window], row_length):
            yield packed_row([window[index] for index in indices])


def save_packed(examples: Iterable[Example], row_length: int, directory: Path) -> int:
    """Write a packed data set to ``directory``, part by part, so that any number of rows fits into the memory; returns
    how many there are. Of none nothing is written."""
    rows, parts = packed_rows(examples, row_length), list[Path]()
    num_rows = 0
    while part := list(itertools.islice(rows, PART_ROWS)):
        parts.append(directory.with_name(f"{directory.name}-part-{len(parts)}"))
        columns = {name: [row[name] for row in part] for name in FEATURES}
        Dataset.from_dict(columns, features=FEATURES).save_to_disk(str(parts[-1]))
        num_rows += len(part)
    if parts:
        join_saved(parts, directory)
    return num_rows


def join_saved(parts: Sequence[Path], directory: Path) -> None:
    """Put data sets on disk together in ``directory``, and delete them."""
    if len(parts) == 1:
        parts[0].rename(directory)
        return
    concatenate_datasets([load_from_disk(str(part)) for part in parts]).save_to_disk(str(directory))
    for part in parts:
        shutil.rmtree(part)


def pack_sees(sees: Sequence[int]) -> list[int]:
    """A document's visibility bitmasks as bytes, each row padded to whole bytes, lowest segment first."""
    width = (len(sees) + 7) // 8
    return list(b"".join(mask.to_bytes(width, "little") for mask in sees))


def unpack_sees(packed: Sequence[int], num_segments: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """The row's visibility matrix [G, G], block diagonal over its documents; G is the sum of ``num_segments``."""
    total = sum(num_segments)
    out = np.zeros((total, total), dtype=np.bool_)
    data = np.asarray(packed, dtype=np.uint8)
    at = offset = 0
    for count in num_segments:
        width = (count + 7) // 8
        block = data[at : at + count * width].reshape(count, width)
        bits = np.unpackbits(block, axis=1, bitorder="little")[:, :count]
        out[offset : offset + count, offset : offset + count] = bits.astype(np.bool_)
        at += count * width
        offset += count
    return out
