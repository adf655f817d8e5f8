"""How many records a second are annotated by pattern, and how that grows with workers:

    python -m jobs.benchmark_annotate --workers 1,2

By default over answers of the atlas; ``--source`` takes what ``data.source.path`` of ``jobs.annotate`` does.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jobs.annotate import TOKENIZER, FinishedShard, make_worker
from jobs.arguments import check_out, numbers
from jobs.pool import run_shards
from pasta.benchmark.machine import describe_machine
from pasta.benchmark.metrics import Metric, metrics_table
from pasta.data.annotate.config import AnnotationSections
from pasta.data.atlas_keys import ATLAS
from pasta.data.sources import SourceSection, plan_shards
from pasta.data.tokenizers import find_tokenizer
from pasta.entrypoint import CommandParser, run_main
from pasta.errors import UserError
from pasta.stages.records import write_json
from pasta.stages.workers import LightWorkersSection


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m jobs.benchmark_annotate", description=__doc__)
    add = parser.add_argument
    add("--source", default=ATLAS, help="answers to annotate (atlas)")
    add("--records", type=int, default=4000, help="how many (4000)")
    add("--shard-records", type=int, default=100, help="records a shard (100)")
    add("--workers", type=numbers("1,2"), default=(1, 2), help="numbers of workers (1,2)")
    add("--out", type=Path, default=Path("runs/benchmark/annotate.json"), help="the JSON file to write")
    options = parser.parse_args(arguments)
    check_out(options.out)
    try:
        source = SourceSection(
            options.source, records=options.records, seed=0 if options.source == ATLAS else None
        )
        sections = AnnotationSections(source, "syntactic", shard_records=options.shard_records)
        counts = [LightWorkersSection(number) for number in options.workers]
    except ValueError as error:
        raise UserError(str(error)) from None
    metrics: list[Metric] = []
    for section in counts:
        metrics.append(_measure(sections, section))
        print(metrics_table(metrics[-1:]), flush=True)
    if len(metrics) > 1:
        growth = metrics[-1].value / metrics[0].value
        label = f"annotation, {options.workers[-1]} workers over {options.workers[0]}"
        metrics.append(Metric("annotate.growth", label, growth, note="ratio of records a second"))
    write_json(
        options.out,
        {
            "machine": describe_machine(),
            "source": options.source,
            "records": options.records,
            "figures": [metric.to_dict() for metric in metrics],
        },
    )
    print(f"{metrics_table(metrics)}\n\nwritten to {options.out}")
    return 0


def _measure(data: AnnotationSections, workers: LightWorkersSection) -> Metric:
    """Records a second while all workers are busy: Ray's start-up does not count."""
    shards = {shard.index: shard for shard in plan_shards(data.source, data.shard_records)}
    number = workers.num_workers
    finished: dict[int, FinishedShard] = {}
    with tempfile.TemporaryDirectory() as name:
        find_tokenizer(data.tokenizer).save_pretrained(Path(name) / TOKENIZER)
        run_shards(partial(make_worker, data, Path(name), number), shards, finished.__setitem__, workers)
        rate, counted = steady_rate([*finished.values()], number)
    label = f"annotation by pattern, records a second, {number} worker{'s' if number > 1 else ''}"
    return Metric(f"annotate.records.{number}", label, rate, count=counted)


def steady_rate(finished: Sequence[FinishedShard], num_workers: int) -> tuple[float, int]:
    """Records a second between the end of the last worker's first shard and the end of the first worker's last shard,
    and how many records that were.

    Raises UserError if there are too few shards for that.
    """
    times: dict[int, list[float]] = {}
    for shard in finished:
        times.setdefault(shard.worker, []).append(shard.time)
    begin = max(min(each) for each in times.values())
    end = min(max(each) for each in times.values())
    counted = sum(shard.result.num_records for shard in finished if begin < shard.time <= end)
    if len(times) < num_workers or end <= begin or not counted:
        raise UserError(f"--records: too few for {num_workers} workers to be busy at the same time")
    return counted / (end - begin), counted


if __name__ == "__main__":
    run_main(main)
