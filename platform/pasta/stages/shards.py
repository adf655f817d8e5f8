"""Shards: the JSONL files of a stage, each of which is there whole or not at all."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pasta.errors import UserError
from pasta.files import read_bytes, write_whole
from pasta.rows import read_rows
from pasta.stages.records import Record, record_line
from pasta.stages.stage import Manifest, read_manifest

T = TypeVar("T")


def shard_path(directory: Path, prefix: str, number: int) -> Path:
    """``PREFIX-00000.jsonl`` and so on."""
    return directory / f"{prefix}-{number:05d}.jsonl"


def write_shard(directory: Path, prefix: str, number: int, records: Iterable[Record]) -> Path:
    """Write one shard, a record a line."""
    path = shard_path(directory, prefix, number)
    write_whole(path, "".join(map(record_line, records)))
    return path


def read_shard(path: Path) -> list[Record]:
    """The records of a shard. Raises UserError if it is not there or not what ``write_shard`` writes."""
    try:
        return [record for _, record in read_rows(path)]
    except UserError as error:
        raise UserError(f"{error}; make its stage anew") from None


def done_shards(directory: Path, prefix: str) -> set[int]:
    """Numbers of the shards that are there."""
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{5,}})\.jsonl")
    if not directory.is_dir():
        return set()
    return {int(match[1]) for path in directory.iterdir() if (match := pattern.fullmatch(path.name))}


def finished_stage(directory: Path, stage: str, key: str) -> Manifest:
    """The manifest of a finished ``stage``. Raises UserError, naming ``key``, if ``directory`` holds none."""
    manifest = read_manifest(directory)
    if manifest is None:
        raise UserError(f"{key}: {directory}: holds no finished stage; run the {stage} stage first")
    if manifest.stage != stage:
        raise UserError(f"{key}: {directory}: holds stage {manifest.stage!r}, expected {stage!r}")
    return manifest


def content_digest(paths: Iterable[Path]) -> str:
    """A digest of what shards hold. A stage that is made again has the identity that it had, and may hold other
    records."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(read_bytes(path))
    return digest.hexdigest()[:16]


def split_into_shards(items: Sequence[T], size: int) -> dict[int, list[T]]:
    """``items`` in shards of ``size``, by number."""
    return {n: list(items[at : at + size]) for n, at in enumerate(range(0, len(items), size))}


def iter_records(paths: Iterable[Path]) -> Iterator[Record]:
    """The records of several shards, in order."""
    for path in paths:
        yield from read_shard(path)
