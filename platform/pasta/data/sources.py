"""Reads instruction data: JSONL, JSON and parquet files, Hugging Face data sets, and the atlas.

A source is cut into shards, ranges of records that do not depend on who reads them or how many read at once. Records
that cannot be read are returned as :class:`Broken`, so that they can be counted and named.
"""

import glob
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pasta.bounds import check_positive, check_unread
from pasta.data.annotate.finished import check_all_shards
from pasta.data.atlas.corpus import atlas_answers
from pasta.data.atlas.tasks import SPLITS
from pasta.data.atlas_keys import ATLAS, MAX_SHARDS, check_atlas_keys
from pasta.data.instructions import BrokenRecord, Format, Instruction, to_instruction
from pasta.data.opened import (
    DEFAULT_SPLIT,
    SOURCE_KEY,
    forget_opened,
    parquet_file,
    read_array,
    read_data_set,
    read_row_group,
)
from pasta.errors import UserError
from pasta.files import annotated_files, read_lines, reading
from pasta.lang import render
from pasta.rows import numbered, parse_json
from pasta.stages.shards import finished_stage
from pasta.stages.stage import read_manifest

_SUFFIXES: dict[str, "Kind"] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
_PEEKED = 50
_KEPT_CHARS = 4000
Kind = Literal["jsonl", "json", "parquet", "dataset", "atlas"]


@dataclass(frozen=True, slots=True)
class SourceSection:
    """Where instruction data come from.

    ``path`` is ``atlas``, a file (.jsonl, .json with an array, .parquet), a glob pattern or a directory of such files,
    the output directory of an annotate stage, a directory that ``datasets`` saved, or the name of a data set on the
    Hugging Face Hub (``owner/name``). ``split``, ``subset`` and ``revision`` choose within a data set. ``format`` is
    how a record holds its messages. ``records`` bounds how many are read; the atlas makes that many from ``seed``, with
    ``mixture``, ``echo`` and ``talk`` as in ``pasta.data.atlas.corpus``: in shards of 5,000 they are what supervised
    finetuning makes from the same seed.
    """

    path: str
    format: Format = "auto"
    split: str = DEFAULT_SPLIT
    subset: str | None = None
    revision: str | None = None
    records: int | None = None
    seed: int | None = None
    mixture: dict[str, float] = field(default_factory=dict)
    echo: float = 0.0
    talk: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "records")
        if self.path == ATLAS and self.records is None:
            raise ValueError("records: expected the number of atlas tasks to make")
        if self.path == ATLAS and self.split not in SPLITS:
            raise ValueError(f"split {self.split!r}: expected one of {', '.join(SPLITS)}")
        if self.path == ATLAS:
            check_unread(self, "with path: atlas", "format", "subset", "revision")
        if self.path != ATLAS and self.seed is not None:
            raise ValueError("seed: only the atlas is made from a seed")
        check_atlas_keys(self.path, {"records": self.records}, self.mixture, self.echo, self.talk)


@dataclass(frozen=True, slots=True)
class Shard:
    """``count`` records of one file or data set, from number ``start`` (from 0).

    Of a JSONL file ``start`` is a line, and ``offset`` the byte at which it begins; blank lines are no records.
    """

    index: int
    kind: Kind
    path: str
    start: int
    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that cannot be read: its place (file and line), what is wrong, and its beginning."""

    place: str
    reason: str
    raw: str


def source_files(source: SourceSection) -> list[Path]:
    """The local files (or the one saved data set) of a source; none for the atlas and for the Hub. Raises UserError if
    the path looks local and nothing is there, or if it is the output of a stage other than annotate."""
    if source.path == ATLAS:
        return []
    path = Path(source.path)
    if os.path.isfile(path):
        _kind_of(path)
        return [path]
    if os.path.isdir(path):
        if _is_saved_dataset(path):
            return [path]
        if read_manifest(path) is not None:
            finished_stage(path, "annotate", SOURCE_KEY)
            check_all_shards(path, SOURCE_KEY)
            return annotated_files(path)
        found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    elif glob.has_magic(source.path):
        found = sorted(Path(name) for name in glob.glob(source.path, recursive=True) if Path(name).is_file())
        for file in found:
            _kind_of(file)
    elif path.suffix in _SUFFIXES or source.path.startswith((".", "/", "~")) or source.path.count("/") > 1:
        raise UserError(
            f"{SOURCE_KEY}: {source.path}: no such file; expected atlas, a JSONL, JSON or parquet file, a pattern or "
            "directory of them, or a Hub data set (owner/name)"
        )
    else:
        return []
    if not found:
        raise UserError(f"{SOURCE_KEY}: {source.path}: no .jsonl, .json or .parquet file there")
    return found


def plan_shards(
    source: SourceSection, shard_records: int, say: Callable[[str], None] = lambda line: None
) -> list[Shard]:
    """Cut a source into shards of at most ``shard_records`` records, in the order of the data. Where some of several
    files hold no records, ``say`` gets a line that names the first of them.

    Raises UserError for a source that cannot be opened, is empty, or whose first records are all of no known format.
    """
    _check_selection(source)
    empty: list[Path] = []
    ranges = list(_bounded(_ranges(source, shard_records, empty), source.records))
    if not ranges:
        raise UserError(f"{SOURCE_KEY}: {source.path}: holds no records")
    if empty:
        others = f" (nor do {len(empty) - 1} other files)" if len(empty) > 1 else ""
        say(f"{SOURCE_KEY}: {empty[0]}: holds no records{others}; left out")
    if unread := _unread(source):
        say(
            f"{SOURCE_KEY}: {unread[0]}: not read ({len(unread)} of that kind): of a directory only the files directly "
            "in it are, uncompressed; name a pattern, such as DIRECTORY/**/*.jsonl, for those in its folders"
        )
    if len(ranges) > MAX_SHARDS:
        raise UserError(f"data.shard_records: {shard_records} makes {len(ranges):,} shards; make it larger")
    shards = [Shard(index, *each) for index, each in enumerate(ranges)]
    records = itertools.chain.from_iterable(read_source_shard(shard, source) for shard in shards)
    first = list(itertools.islice(records, _PEEKED))
    forget_opened()  # workers read on, not this process
    broken = [record for record in first if isinstance(record, Broken)]
    if broken and len(broken) == len(first):
        others = f" (nor could any of the first {len(first)} records be read)" if len(first) > 1 else ""
        raise UserError(f"{SOURCE_KEY}: {broken[0].place}: {broken[0].reason}{others}")
    return shards


def _unread(source: SourceSection) -> list[Path]:
    """Files of data in a source's directory that are not read: those in its folders, and compressed ones."""
    path = Path(source.path)
    if (
        source.path == ATLAS
        or not path.is_dir()
        or read_manifest(path) is not None
        or _is_saved_dataset(path)
    ):
        return []
    read = {*source_files(source)}
    below = (file for file in path.rglob("*") if file.is_file() and file not in read)
    shown = (file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts))
    return sorted(file for file in shown if not _SUFFIXES.keys().isdisjoint(file.suffixes))


def _check_selection(source: SourceSection) -> None:
    """Raise UserError, naming the key, if a key that chooses within a data set is given for files."""
    files = source_files(source)
    try:
        if files and files[0].is_dir():
            check_unread(source, "with a data set on disk", "subset", "revision")
        elif files:
            check_unread(source, "with files", "split", "subset", "revision")
    except ValueError as error:
        raise UserError(f"data.source.{error}") from None


def read_source_shard(shard: Shard, source: SourceSection) -> Iterator[Instruction | Broken]:
    """The records of a shard; ids are the data's own, or file and line."""
    if shard.kind == "atlas":
        seed = (source.seed or 0) * MAX_SHARDS + shard.index
        split: Any = source.split
        tasks = atlas_answers(
            seed, split, shard.count, mixture=source.mixture, echo=source.echo, talk=source.talk
        )
        for number, (messages, document) in enumerate(tasks):
            place = f"atlas:{source.seed or 0}:{shard.start + number}"
            yield Instruction(place, place, tuple(messages), render(document))
        return
    readers = {"jsonl": _read_jsonl, "json": _read_json, "parquet": _read_parquet, "dataset": _read_dataset}
    for place, value in readers[shard.kind](shard, source):
        if isinstance(value, Broken):
            yield value
            continue
        try:
            yield to_instruction(value, place, source.format)
        except BrokenRecord as error:
            raw = json.dumps(value, ensure_ascii=True, default=repr)
            yield Broken(place, str(error), raw[:_KEPT_CHARS])


Range = tuple[Kind, str, int, int, int]
Placed = Iterator[tuple[str, Any]]


def _ranges(source: SourceSection, size: int, empty: list[Path]) -> Iterator[Range]:
    """The ranges of a source; adds files that hold no records to ``empty``."""
    files = source_files(source)
    if source.path == ATLAS:
        assert source.records is not None
        yield from _cut("atlas", ATLAS, source.records, size)
    elif not files or files[0].is_dir():
        yield from _cut("dataset", source.path, len(_data_set(source)), size)
    else:
        for file in files:
            holds_records = False
            for each in _cut_file(file, size):
                holds_records = True
                yield each
            if not holds_records:
                empty.append(file)


def _cut_file(file: Path, size: int) -> Iterator[Range]:
    kind = _kind_of(file)
    if kind == "jsonl":
        yield from _cut_lines(file, size)
    elif kind == "json":
        yield from _cut("json", str(file), len(read_array(str(file))), size)
    else:
        with parquet_file(file) as table:
            yield from _cut("parquet", str(file), table.metadata.num_rows, size)


def _cut(kind: Kind, path: str, total: int, size: int) -> Iterator[Range]:
    for start in range(0, total, size):
        yield kind, path, start, min(size, total - start), 0


def _cut_lines(file: Path, size: int) -> Iterator[Range]:
    """The records in lines ``start`` to ``start + size`` of a file, and the byte at which these lines begin."""
    offset = start = 0
    lines = read_lines(file, key=SOURCE_KEY)
    while cut := list(itertools.islice(lines, size)):
        if count := sum(1 for _ in numbered(cut, start + 1)):  # a shard of blank lines alone is none
            yield "jsonl", str(file), start, count, offset
        start, offset = start + len(cut), offset + sum(map(len, cut))


def _bounded(ranges: Iterator[Range], records: int | None) -> Iterator[Range]:
    before = 0
    for kind, path, start, count, offset in ranges:
        taken = count if records is None else min(count, records - before)
        if taken <= 0:
            return
        yield kind, path, start, taken, offset
        before += count


def _read_jsonl(shard: Shard, source: SourceSection) -> Placed:
    with reading(shard.path, key=SOURCE_KEY), Path(shard.path).open("rb") as stream:
        stream.seek(shard.offset)
        for number, record in itertools.islice(numbered(stream, shard.start + 1), shard.count):
            place = f"{shard.path}:{number}"
            yield place, _parse_line(record, place)


def _parse_line(line: bytes, place: str) -> Any:
    try:
        return parse_json(line)
    except UserError as error:
        raw = line[:_KEPT_CHARS].decode("utf-8", "backslashreplace").rstrip("\r\n")
        return Broken(place, str(error), raw)


def _read_json(shard: Shard, source: SourceSection) -> Placed:
    values = read_array(shard.path)
    for number in range(shard.start, shard.start + shard.count):
        yield f"{shard.path}:record {number + 1}", values[number]


def _read_parquet(shard: Shard, source: SourceSection) -> Placed:
    end = shard.start + shard.count
    with parquet_file(Path(shard.path)) as table:
        begin = 0
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if begin < end and begin + rows > shard.start:
                first = max(shard.start - begin, 0)
                found = read_row_group(shard.path, group)
                part = found.slice(first, min(end - begin, rows) - first)
                for number, value in enumerate(part.to_pylist(), start=begin + first + 1):
                    yield f"{shard.path}:row {number}", value
            begin += rows


def _read_dataset(shard: Shard, source: SourceSection) -> Placed:
    rows = _data_set(source).select(range(shard.start, shard.start + shard.count))
    for number, value in enumerate(rows, start=shard.start + 1):
        yield f"{shard.path}:{source.split}:{number}", value


def _data_set(source: SourceSection) -> Any:
    return read_data_set(source.path, source.subset, source.split, source.revision)


def _kind_of(file: Path) -> Kind:
    kind = _SUFFIXES.get(file.suffix)
    if kind is None:
        raise UserError(f"{SOURCE_KEY}: {file}: expected a name in {', '.join(_SUFFIXES)}")
    return kind


def _is_saved_dataset(path: Path) -> bool:
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
