"""Annotation of instruction data as a Ray Data job:

    python -m jobs.annotate --config configs/annotate/atlas.yaml

The output is a directory of JSONL files that ``pasta check`` and ``jobs.sft`` read. The same command again goes on
where the last one stopped, shard by shard. Single keys are set with ``--set source.records=1000``; ``--restart``
forgets what was done.
"""

import json
import logging
import os
import shutil
import sys
import time
from argparse import ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.arguments import job_parser
from jobs.cluster import code_version, ray_cluster
from pasta.config import load_config, to_dict
from pasta.data.annotate.config import AnnotationSections, make_annotator
from pasta.data.annotate.shards import ShardResult, annotate_shard, finished_shard
from pasta.data.annotate.summary import SUMMARY, describe, logged, summarise
from pasta.data.annotate.validator import Validator
from pasta.data.sources import Shard, plan_shards, source_files
from pasta.data.tokenizers import find_tokenizer, load_tokenizer
from pasta.entrypoint import run_main
from pasta.errors import UserError
from pasta.files import write_whole
from pasta.lang import Codec
from pasta.stages.stage import StageOutput
from pasta.tracking import Tracker, TrackingSection, start_tracker

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class WorkersSection:
    """Ray Data workers; ``cpus`` a worker is what it reserves (less than 1 for a teacher, which mostly waits)."""

    num_workers: int = 2
    cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"num_workers {self.num_workers}: expected at least 1")
        if not self.cpus > 0:
            raise ValueError(f"cpus {self.cpus}: expected a positive number")


@dataclass(frozen=True, slots=True)
class AnnotateConfig:
    """One annotation run. ``output_dir`` gets the finished data, ``run_dir`` what tracking writes.

    On a cluster both must lie on storage that all nodes share, and so must local source files.
    """

    name: str
    output_dir: Path
    data: AnnotationSections
    run_dir: Path = Path("runs/annotate")
    workers: WorkersSection = field(default_factory=WorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished shard, by whom (process id), and when (seconds since the epoch)."""

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
    options = parser().parse_args(arguments)
    config = load_config(options.config, AnnotateConfig, options.overrides)
    return run(config, restart=options.restart, address=options.address)


def stage(config: AnnotateConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for a source that is not there."""
    files = source_files(config.data.source)
    inputs: dict[str, str | Path] = {f"source[{number}]": file for number, file in enumerate(files)}
    inputs = inputs or {"source": config.data.source.path}
    return StageOutput(config.output_dir, "annotate", config.data.identity(), inputs, restart=restart)


def run(config: AnnotateConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Annotate the source on Ray workers and leave the data in ``config.output_dir``."""
    api_key = _api_key(config)
    output = stage(config, restart=restart)
    if output.is_done:
        print(
            f"{config.name}: nothing to do: {config.output_dir} has this configuration (--restart makes it again)"
        )
        return 0
    tokenizer = find_tokenizer(config.data.tokenizer)
    shards = plan_shards(config.data.source, config.data.shard_records)
    directory = output.start().absolute()
    tokenizer.save_pretrained(directory / TOKENIZER)
    results = _finished(directory, shards)
    todo = [shard for shard in shards if shard.index not in results]
    print(
        f"{config.name}: {len(shards)} shards, {len(results)} of them found finished in {directory}",
        flush=True,
    )
    tracker = start_tracker(
        config.tracking,
        run_dir=config.run_dir / f"{config.name}-{output.identity[:8]}",
        name=config.name,
        job="annotate",
        config=to_dict(config),
    )
    try:
        begun = time.monotonic()
        # Closed here, so that an error does not leave Ray to the garbage collector.
        with closing(annotate_shards(config, todo, directory, api_key, address)) as done:
            for finished in done:
                results[finished.result.index] = finished.result
                _report(config, results, len(shards), time.monotonic() - begun, len(todo), tracker)
        teacher = config.data.teacher
        prices = (teacher.endpoint.price_read, teacher.endpoint.price_written) if teacher else None
        summary = summarise(directory, [results[shard.index] for shard in shards], prices)
        print(describe(summary))
        tracker.summary(logged(summary))
        tracker.table(
            "annotate/speedup_distribution",
            ["speedup", "answers"],
            [*summary["speedup_distribution"].items()],
        )
    except KeyboardInterrupt:
        print(f"{config.name}: the same command goes on after the last finished shard", file=sys.stderr)
        raise
    except UserError as error:
        # The error may overtake a shard that was finished before it.
        kept = len(_finished(directory, shards))
        raise UserError(f"{error}; {kept} of {len(shards)} shards are finished and kept") from None
    finally:
        tracker.finish()
    shutil.rmtree(directory / TOKENIZER)
    write_whole(directory / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    output.finish(summary, code_version())
    print(f"{config.name}: annotated data written to {config.output_dir}")
    return 0


def _finished(directory: Path, shards: Sequence[Shard]) -> dict[int, ShardResult]:
    """The results of shards that are on disk, by number."""
    return {shard.index: result for shard in shards if (result := finished_shard(directory, shard.index))}


def _api_key(config: AnnotateConfig) -> "_Secret | None":
    teacher = config.data.teacher
    if teacher is None or teacher.endpoint.api_key_env is None:
        return None
    name = teacher.endpoint.api_key_env
    value = os.environ.get(name)
    if not value:
        raise UserError(
            f"data.teacher.endpoint.api_key_env: the environment variable {name} is not set; it must hold the "
            "endpoint's key (or say api_key_env: null if it needs none)"
        )
    return _Secret(value)


def annotate_shards(
    config: AnnotateConfig,
    shards: Sequence[Shard],
    directory: Path,
    api_key: "_Secret | None" = None,
    address: str | None = None,
) -> Generator[Finished]:
    """Shards as Ray Data's workers finish them; ``directory`` holds the tokenizer and gets the files.

    Raises UserError with a worker's own message.
    """
    if not shards:
        return
    num_workers = min(config.workers.num_workers, len(shards))
    with ray_cluster(address, num_workers, dashboard=False) as check_interrupt:
        # Ray is imported after its environment is set.
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.WARNING)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        rows = [{"shard": shard.index} for shard in shards]
        # A block a shard: whoever is free takes the next one.
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Worker,
            fn_constructor_args=(config, tuple(shards), str(directory), os.getcwd(), num_workers, api_key),
            compute=ray.data.ActorPoolStrategy(size=num_workers),
            num_cpus=config.workers.cpus,
        )
        for row in data.iter_rows():
            check_interrupt()
            if row["error"]:
                raise UserError(row["error"])
            yield Finished(ShardResult.of(json.loads(row["result"])), row["worker"], row["time"])


class _Worker:
    """One Ray Data worker: the library's ``annotate_shard``, with what it needs built once."""

    def __init__(
        self,
        config: AnnotateConfig,
        shards: Sequence[Shard],
        directory: str,
        cwd: str,
        num_workers: int,
        api_key: "_Secret | None",
    ) -> None:
        os.chdir(cwd)  # relative paths in a configuration mean the same on every worker
        self._config = config
        self._shards = {shard.index: shard for shard in shards}
        self._directory = Path(directory)
        codec = Codec(load_tokenizer(self._directory / TOKENIZER))
        self._validator = Validator(config.data.checks, codec)
        key = api_key.value if api_key is not None else None
        self._annotator = make_annotator(config.data, self._validator, num_workers=num_workers, api_key=key)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard, data = self._shards[int(row["shard"])], self._config.data
        try:
            result = annotate_shard(
                shard, data.source, self._annotator, self._validator, self._directory, data.rewrite
            )
        except UserError as error:  # Ray would bury its message in stack traces
            return {"result": "", "error": str(error), "worker": os.getpid(), "time": time.time()}
        finished = json.dumps(result.to_dict())
        return {"result": finished, "error": "", "worker": os.getpid(), "time": time.time()}


@dataclass(frozen=True, slots=True, repr=False)
class _Secret:
    """A key on its way to the workers, which no log or error message can show."""

    value: str


def _report(
    config: AnnotateConfig,
    results: dict[int, ShardResult],
    num_shards: int,
    seconds: float,
    num_todo: int,
    tracker: Tracker,
) -> None:
    """Progress after a shard, printed and logged; the rate counts what this run did."""
    done = len(results) - (num_shards - num_todo)
    newest = [*results.values()][-done:]
    records = sum(result.num_records for result in results.values())
    kept = sum(result.num_annotated + result.num_plain for result in results.values())
    figures = {
        "annotate/shards": len(results),
        "annotate/records": records,
        "annotate/records_per_second": sum(result.num_records for result in newest) / seconds,
        "annotate/share_annotated": sum(r.num_annotated for r in results.values()) / max(kept, 1),
        "annotate/share_rejected": 1 - kept / max(records, 1),
    }
    tracker.log(figures, step=len(results))
    print(
        f"{config.name}: {len(results)}/{num_shards} shards, {records:,} records, "
        f"{figures['annotate/records_per_second']:.1f} a second, {figures['annotate/share_annotated']:.1%} annotated, "
        f"{figures['annotate/share_rejected']:.1%} rejected",
        flush=True,
    )


if __name__ == "__main__":
    run_main(main)
