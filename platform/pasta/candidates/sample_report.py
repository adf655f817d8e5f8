"""What a sample stage has left: its shards, and the figures of its records."""

import math
from collections.abc import Iterable
from pathlib import Path

from pasta.errors import UserError
from pasta.stages.records import Record
from pasta.stages.shards import finished_stage, shard_path
from pasta.statistics import geometric_mean

#: Begins the names of a sample stage's shards.
PREFIX = "samples"


def sample_shards(directory: Path, key: str = "samples") -> list[Path]:
    """The shards of a finished sample stage. Raises UserError, naming ``key``, if it is none, or if one is gone."""
    manifest = finished_stage(directory, "sample", key)
    count = math.ceil(manifest.figures["prompts"] / manifest.config["shard_prompts"])
    paths = [shard_path(directory, PREFIX, number) for number in range(count)]
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{key}: {path}: no such file, though its stage is finished; copy it again, or make its stage anew"
            )
    return paths


def num_tokens(record: Record) -> int:
    """Tokens decoded for a record: the twin's answer and all candidates, tags counted."""
    if "skipped" in record:
        return 0
    return int(record["twin"]["num_tokens"] + sum(answer["num_tokens"] for answer in record["candidates"]))


def sample_figures(records: Iterable[Record]) -> dict[str, float]:
    """Counts over all records; the geometric mean of the theoretical speedup is over answers that ended themselves.

    Theoretical speedup = the twin's tokens / the candidate's critical path (design section 3).
    """
    counts = dict.fromkeys(
        ("prompts", "skipped", "candidates", "tokens", "cut", "twins_cut", "with_threads"), 0.0
    )
    speedups: list[float] = []
    for record in records:
        counts["prompts"] += 1
        counts["tokens"] += num_tokens(record)
        if "skipped" in record:
            counts["skipped"] += 1
            continue
        twin = record["twin"]
        counts["twins_cut"] += twin["finish_reason"] != "stop"
        for answer in record["candidates"]:
            ended = answer["finish_reason"] == "stop"
            counts["candidates"] += 1
            counts["cut"] += not ended
            counts["with_threads"] += answer["num_threads"] > 1
            if ended and twin["finish_reason"] == "stop":
                speedups.append(twin["num_tokens"] / answer["critical_path"])
    return counts | ({"speedup": geometric_mean(speedups)} if speedups else {})
