"""Annotation of instruction data on Ray workers:

    python -m jobs.annotate --config configs/annotate/atlas.yaml

The output is a directory of JSONL files that ``pasta check`` and ``jobs.sft`` read. The same command again goes on
where the last one stopped, shard by shard. Single keys are set with ``--set data.source.records=1000``; ``--restart``
forgets what was done.
"""

import os
import shutil
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import code_version
from jobs.endpoints import Questions, teacher_keys
from jobs.pool import run_shards
from pasta.data.annotate.config import AnnotationSections, check_truth, make_annotator
from pasta.data.annotate.finished import ShardResult, finished_shard
from pasta.data.annotate.shards import annotate_shard
from pasta.data.annotate.summary import (
    SUMMARY,
    logged,
    rates,
    rates_line,
    summarise_annotations,
    summary_text,
)
from pasta.data.annotate.teacher import NO_KEYS, Keys
from pasta.data.annotate.validator import Validator
from pasta.data.sources import Shard, plan_shards, source_files
from pasta.data.tokenizers import find_tokenizer, load_tokenizer
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.files import full_disk_told
from pasta.lang import Codec
from pasta.stages.progress import Progress
from pasta.stages.records import write_json
from pasta.stages.run import StageRun, nothing_to_do, stage_run
from pasta.stages.stage import StageOutput
from pasta.stages.workers import LightWorkersSection
from pasta.tracking import TrackingSection

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class AnnotateConfig:
    """One annotation run. ``output_dir`` gets the finished data, ``run_dir`` what tracking writes.

    On a cluster both must lie on storage that all nodes share, and so must local source files.
    """

    name: str
    output_dir: Path
    data: AnnotationSections
    run_dir: Path = Path("runs/annotate")
    workers: LightWorkersSection = field(default_factory=LightWorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A finished shard: its result, the process id of its worker, and when it finished (seconds since the epoch)."""

    result: ShardResult
    worker: int
    time: float


CONFIG = AnnotateConfig


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser(
        "annotate", __doc__, "configs/annotate/atlas.yaml", "annotate from the start, whatever was done"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    config, options = parse_arguments(parser(), AnnotateConfig, arguments)
    return run(config, restart=options.restart, address=options.address)


def stage(config: AnnotateConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for a source that is not there."""
    files = source_files(config.data.source)
    inputs: dict[str, str | Path] = {f"source[{number}]": file for number, file in enumerate(files)}
    inputs = inputs or {"source": config.data.source.path}
    # A directory's name stays the same when a model is trained into it with another vocabulary.
    if os.path.isfile(vocabulary := Path(config.data.tokenizer) / "tokenizer.json"):
        inputs["data.tokenizer"] = vocabulary
    return StageOutput(config.output_dir, "annotate", config.data.identity(), inputs, restart=restart)


def run(config: AnnotateConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Annotate the source on Ray workers and leave the data in ``config.output_dir``."""
    output = stage(config, restart=restart)
    if nothing_to_do(config.name, config.output_dir, output, "makes it again"):
        return 0
    keys = teacher_keys(config.data.teacher)
    tokenizer = find_tokenizer(config.data.tokenizer, "data.tokenizer")
    shards = plan_shards(
        config.data.source,
        config.data.shard_records,
        lambda line: print(f"{config.name}: {line}", flush=True),
    )
    check_truth(config.data, shards)
    Questions("once the workers have started").teacher(config.data.teacher, keys, config.name)
    with stage_run(config, output, resumes="after the last finished shard") as job:
        directory = job.work_dir.absolute()
        with full_disk_told(directory, "output_dir"):
            tokenizer.save_pretrained(directory / TOKENIZER)
        results = _annotate(config, shards, directory, keys, job, address)
        summary = summarise_annotations(
            directory, [results[shard.index] for shard in shards], config.data.teacher
        )
        print(summary_text(summary))
        job.tracker.summary(logged(summary))
        job.tracker.table(
            "annotate/speedup_distribution",
            ["speedup", "answers"],
            [*summary["speedup_distribution"].items()],
        )
        shutil.rmtree(directory / TOKENIZER)
        write_json(directory / SUMMARY, summary)
        job.finish("annotated data", summary, code_version())
    return 0


def _annotate(
    config: AnnotateConfig,
    shards: Sequence[Shard],
    directory: Path,
    keys: Keys,
    job: StageRun,
    address: str | None,
) -> dict[int, ShardResult]:
    """Annotate the shards that are not finished yet; returns the results of all. The first one replaces earlier data.
    Raises UserError with a worker's message."""
    results = _finished(directory, shards)
    left = {shard.index: shard for shard in shards if shard.index not in results}
    progress = Progress(config.name, len(shards), "shards", len(results), tracker=job.tracker, job="annotate")
    num_records = 0

    def finished(number: int, done: FinishedShard) -> None:
        nonlocal num_records
        job.output.replace()
        results[number] = done.result
        num_records += done.result.num_records
        figures = rates(results.values(), num_records / progress.seconds)
        progress.add(1, rates_line(figures), {f"annotate/{key}": value for key, value in figures.items()})

    workers = _within_limits(config)
    make = partial(make_worker, config.data, directory, min(workers.num_workers, len(left)), keys)
    try:
        run_shards(make, left, finished, workers, address)
    except UserError as error:
        # The error may overtake a shard that was finished before it.
        if kept := len(_finished(directory, shards)):
            job.output.replace()
        raise UserError(f"{error}; {kept} of {len(shards)} shards are finished and kept") from None
    return results


def _within_limits(config: AnnotateConfig) -> LightWorkersSection:
    """The workers: no more than requests may be under way, since each has one at least."""
    teacher = config.data.teacher
    judge = teacher.independence_judge if teacher else None
    limits = [each.endpoint.concurrency for each in (teacher, judge) if each is not None]
    return replace(config.workers, num_workers=min([config.workers.num_workers, *limits]))


def _finished(directory: Path, shards: Sequence[Shard]) -> dict[int, ShardResult]:
    """The results of shards that are on disk, by number."""
    return {shard.index: result for shard in shards if (result := finished_shard(directory, shard.index))}


def make_worker(
    data: AnnotationSections, directory: Path, num_workers: int, keys: Keys = NO_KEYS
) -> Callable[[Shard], FinishedShard]:
    """Make a worker's function: it annotates a shard into ``directory``, which holds the tokenizer. ``num_workers``
    workers share the teacher's limits."""
    validator = Validator(data.checks, Codec(load_tokenizer(directory / TOKENIZER)))
    annotator = make_annotator(data, validator, num_workers=num_workers, keys=keys)

    def work(shard: Shard) -> FinishedShard:
        result = annotate_shard(shard, data.source, annotator, validator, directory, data.rewrite)
        return FinishedShard(result, os.getpid(), time.time())

    return work


if __name__ == "__main__":
    run_main(main)
