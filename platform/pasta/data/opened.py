"""Files and data sets of a source, kept open in a process: its next shard is most often one of the same file, and to
parse 600 MB of JSON for each shard takes hours."""

import codecs
import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pasta.errors import UserError, first_line
from pasta.files import read_bytes, reading
from pasta.rows import read_json

SOURCE_KEY = "data.source.path"
DEFAULT_SPLIT = "train"


def read_array(path: str) -> list[Any]:
    """The records of a JSON file, an array. Raises UserError, naming the file, if it holds none."""
    return _array(path, *_version(path))


@functools.lru_cache(maxsize=1)
def _array(path: str, *version: int) -> list[Any]:
    hint = "an array of records, or one record a line in a .jsonl file"
    try:
        values = read_json(Path(path), key=SOURCE_KEY, expected=hint)
    except UserError:
        if read_bytes(Path(path), key=SOURCE_KEY).removeprefix(codecs.BOM_UTF8).strip():
            raise
        return []  # an empty file holds no records, as a .jsonl file does
    if not isinstance(values, list):
        raise UserError(f"{SOURCE_KEY}: {path}: expected an array of records")
    return values


def read_row_group(path: str, group: int) -> Any:
    """A row group of a parquet file, as a table."""
    return _row_group(path, group, *_version(path))


@functools.lru_cache(maxsize=1)
def _row_group(path: str, group: int, *version: int) -> Any:
    with parquet_file(Path(path)) as table:
        return table.read_row_group(group)


@contextlib.contextmanager
def parquet_file(file: Path) -> Iterator[Any]:
    """An open parquet file. Raises UserError for one that is damaged, also within the block."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            yield table
    # The last two: text that is not UTF-8, times that Python has none for.
    except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
        raise UserError(
            f"{SOURCE_KEY}: {file}: cannot be read as parquet ({first_line(error)}); expected a whole parquet file"
        ) from None


@functools.lru_cache(maxsize=1)
def read_data_set(path: str, subset: str | None, split: str, revision: str | None) -> Any:
    """A Hub data set or one saved to disk. Raises UserError, in one line, when it cannot be had."""
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.ERROR)
    try:
        if os.path.isdir(path):
            loaded = datasets.load_from_disk(path)
        else:
            loaded = datasets.load_dataset(path, subset, split=split, revision=revision)
    except Exception as error:  # the Hub, its client, the disk and the data set's own files fail in many ways
        raise UserError(
            f"{SOURCE_KEY}: {path}: no such data set could be loaded ({first_line(error)})"
        ) from None
    if not isinstance(loaded, datasets.DatasetDict):
        if os.path.isdir(path) and split not in (DEFAULT_SPLIT, str(loaded.split)):
            raise UserError(
                f"data.source.split: {path} is one data set without splits; expected {DEFAULT_SPLIT}, got {split!r}"
            )
        return loaded
    if split not in loaded:
        raise UserError(f"data.source.split: {path} has no split {split!r}; it has {', '.join(loaded)}")
    return loaded[split]


def _version(path: str) -> tuple[int, int]:
    """What tells that a file has changed. Raises UserError if it is not there."""
    with reading(path, key=SOURCE_KEY):
        stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size


def forget_opened() -> None:
    """Free what this process has kept."""
    for kept in (_array, _row_group, read_data_set):
        kept.cache_clear()
