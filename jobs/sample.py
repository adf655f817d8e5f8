"""Sample candidates for preference finetuning, as an actor pool over decoding engines:

    python -m jobs.sample --config configs/sample/atlas.yaml

Every prompt gets N sampled answers of the PASTA model and the sequential twin's greedy one. The same command again
goes on after the last finished shard, or says that nothing is left to do. Single keys are set with
``--set sampling.temperature=0.8``; ``--restart`` forgets what was done.
"""

import hashlib
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any

from jobs.arguments import job_parser
from jobs.cluster import code_version
from jobs.pool import Work, run_shards
from pasta.candidates.config import SampleConfig
from pasta.candidates.sample_report import SampleProgress, sample_figures
from pasta.config import load_config, to_dict
from pasta.data.prompts import Prompt
from pasta.entrypoint import run_main
from pasta.evaluation.prompts import read_prompts, source_paths
from pasta.stages.shards import cut, done_shards, iter_records, shard_path, write_shard
from pasta.stages.stage import StageOutput
from pasta.tracking import start_tracker

#: How a stage is run and not what comes out of it: it may change between two runs.
RUNNING = ("workers",)
CONFIG = SampleConfig
PREFIX = "samples"


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser(
        "sample", __doc__, "configs/sample/atlas.yaml", "sample from the start, whatever was done before"
    )


def main() -> int:
    arguments = parser().parse_args()
    config = load_config(arguments.config, SampleConfig, arguments.overrides)
    return run(config, restart=arguments.restart, address=arguments.address)


def stage(config: SampleConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for models and prompts that are missing or do not fit together."""
    return _stage(config, read_prompts(config.prompts), restart)


def run(config: SampleConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Sample on Ray workers and leave ``samples-*.jsonl`` and a manifest in ``config.output_dir``."""
    prompts = read_prompts(config.prompts)
    output = _stage(config, prompts, restart)
    if output.is_done:
        print(
            f"{config.name}: nothing to do: {config.output_dir} has this configuration (--restart samples again)"
        )
        return 0
    work_dir = output.start()
    shards = cut(prompts, config.shard_prompts)
    done = done_shards(work_dir, PREFIX)
    run_dir = config.run_dir.absolute() / f"{config.name}-{output.identity[:8]}"
    tracker = start_tracker(
        config.tracking, run_dir=run_dir, name=config.name, job="sample", config=to_dict(config)
    )
    progress = SampleProgress(config.name, len(prompts), sum(len(shards[n]) for n in done), tracker)

    def finished(number: int, records: list[dict[str, Any]]) -> None:
        write_shard(work_dir, PREFIX, number, records)
        progress.add(records)

    try:
        left = {number: shard for number, shard in shards.items() if number not in done}
        run_shards(partial(_make, config), left, finished, config.workers, address)
        figures = sample_figures(iter_records(shard_path(work_dir, PREFIX, n) for n in shards))
        if left:
            figures["tokens_per_second"] = progress.tokens_per_second
        output.finish(figures, code_version())
        tracker.summary({f"sample/{key}": float(value) for key, value in figures.items()})
    except KeyboardInterrupt:
        print(f"{config.name}: the same command goes on after the last finished shard", file=sys.stderr)
        raise
    finally:
        tracker.finish()
    print(f"{config.name}: samples written to {config.output_dir}")
    return 0


def _stage(config: SampleConfig, prompts: list[Prompt], restart: bool) -> StageOutput:
    from pasta.candidates.sampling import check_models

    check_models(config)
    models = {"model": config.model, "twin": config.twin or config.model}
    # A directory is read; a Hub name stands for itself.
    inputs = {
        key: str(Path(name).absolute()) if Path(name).is_dir() else name for key, name in models.items()
    }
    values = {key: value for key, value in to_dict(config).items() if key not in RUNNING}
    ids = " ".join(prompt.id for prompt in prompts)
    values["prompt_ids"] = hashlib.sha256(ids.encode()).hexdigest()[:16]
    return StageOutput(
        config.output_dir.absolute(), "sample", values, inputs | source_paths(config.prompts), restart=restart
    )


def _make(config: SampleConfig) -> Work:
    """On a worker: the models, loaded once, and what makes a shard's records with them."""
    from pasta.candidates.sampling import load_sampler

    return load_sampler(config).sample


if __name__ == "__main__":
    run_main(main)
