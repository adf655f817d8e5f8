"""What an annotate stage has left of each shard; ``shards`` says in which files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta.data.annotate.annotator import NO_USAGE, TeacherUsage
from pasta.errors import UserError
from pasta.files import annotated_files, read_lines
from pasta.rows import read_json
from pasta.stages.stage import read_manifest


def shard_file(directory: Path, name: str, index: int, suffix: str) -> Path:
    """``NAME-00012`` and so on: a file of shard ``index``."""
    return directory / f"{name}-{index:05d}{suffix}"


@dataclass(frozen=True, slots=True)
class ShardResult:
    """A finished shard: how many of its records were kept with chunks, kept without, and rejected, and why.

    ``broken`` names the first unreadable records, ``seconds`` is the wall clock of the run that finished it.
    ``refused`` counts proposals that the annotator itself refused, also of records that were kept; ``judged`` is what
    its judge cost.
    """

    index: int
    num_records: int
    num_annotated: int
    num_plain: int
    rejected: dict[str, int]
    repairs: dict[str, int]
    broken: list[str]
    usage: TeacherUsage
    seconds: float
    refused: dict[str, int] = field(default_factory=dict)
    judged: TeacherUsage = NO_USAGE

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ShardResult":
        """The inverse of ``asdict``."""
        usage, judged = (TeacherUsage(**values[name]) for name in ("usage", "judged"))
        return cls(**{**values, "usage": usage, "judged": judged})


def finished_shard(directory: Path, index: int) -> ShardResult | None:
    """The result of a finished shard, or None if the shard is not finished."""
    try:
        return ShardResult.of(read_json(shard_file(directory, "shard", index, ".json")))
    except (UserError, TypeError, KeyError):
        return None


def check_all_shards(directory: Path, key: str) -> None:
    """Raise UserError, naming ``key``, for the directory of a finished annotate stage without all of its shards. Lines
    that were taken out by hand are no matter, and a shard of which nothing was kept has no file."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.stage != "annotate":
        return
    kept, found = manifest.figures.get("kept", 0), 0
    for file in annotated_files(directory):
        number = file.stem.rpartition("-")[2]
        shard = finished_shard(directory, int(number)) if number.isdecimal() else None
        found += sum(1 for _ in read_lines(file)) if shard is None else shard.num_annotated + shard.num_plain
    if found < kept:
        raise UserError(
            f"{key}: {directory}: has shards of {found} of the {kept} answers that its stage has kept; copy it again, "
            "or make its stage anew"
        )
