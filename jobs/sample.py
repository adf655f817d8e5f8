"""Sample candidates for preference finetuning, as an actor pool over decoding engines:

    python -m jobs.sample --config configs/sample/atlas.yaml

Every prompt gets N sampled answers of the PASTA model and the sequential twin's greedy one. The same command again
goes on after the last finished shard, or says that nothing is left to do. Single keys are set with
``--set sampling.temperature=0.8``; ``--restart`` forgets what was done.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import check_engine, code_version
from jobs.pool import Work, run_shards
from pasta.candidates.config import SampleConfig
from pasta.candidates.sample_report import PREFIX, num_tokens, sample_figures
from pasta.config import to_dict
from pasta.data.prompts import Prompt
from pasta.entrypoint import run_main
from pasta.evaluation.prompts import digest, read_prompts
from pasta.stages.machines import Machines, read_machines
from pasta.stages.progress import Progress
from pasta.stages.records import Record
from pasta.stages.run import StageRun, nothing_to_do, stage_run
from pasta.stages.shards import done_shards, iter_records, shard_path, split_into_shards, write_shard
from pasta.stages.stage import StageOutput, model_inputs
from serve.imports import uncollected, without_torch

if TYPE_CHECKING:
    from pasta.engine.ranks import Ranks

#: Keys that say how a stage is run and do not change its output: they may differ between two runs.
RUNNING = ("workers",)
CONFIG = SampleConfig


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser(
        "sample", __doc__, "configs/sample/atlas.yaml", "sample from the start, whatever was done before"
    )


def main() -> int:
    config, options = parse_arguments(parser(), SampleConfig)
    with uncollected():
        without_torch()  # the workers have the models
    return run(config, restart=options.restart, address=options.address)


def stage(config: SampleConfig, *, restart: bool = False) -> StageOutput:
    """The stage on disk. Raises UserError for models and prompts that are missing or do not fit together."""
    return _stage(config, read_prompts(config.prompts), restart)


def run(config: SampleConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Sample on Ray workers and leave ``samples-*.jsonl`` and a manifest in ``config.output_dir``."""
    prompts = read_prompts(config.prompts)
    output = _stage(config, prompts, restart)
    if nothing_to_do(config.name, config.output_dir, output, "samples again"):
        return 0
    from pasta.candidates.checks import check_room

    check_engine(config.engine, config.workers, address, (config.model, config.twin))
    check_room(config.model, prompts, config.limits, config.engine.slot_tokens)
    with stage_run(config, output, resumes="after the last finished shard") as job:
        shards = split_into_shards(prompts, config.shard_prompts)
        machines = Machines(config.name, job.work_dir, read_machines(job.work_dir))
        figures = _sample(config, shards, job, machines, address)
        figures |= sample_figures(iter_records(shard_path(job.work_dir, PREFIX, n) for n in shards))
        job.tracker.summary({f"sample/{key}": float(value) for key, value in figures.items()})
        job.finish("samples", {**figures, "formats": machines.formats()}, code_version())
    return 0


def _sample(
    config: SampleConfig,
    shards: Mapping[int, Sequence[Prompt]],
    job: StageRun,
    machines: Machines,
    address: str | None,
) -> dict[str, float]:
    """Do the shards that are not there yet; returns the rate at which tokens were decoded, if any were. The first one
    replaces earlier samples. The machines that they are sampled on are added to ``machines``."""
    done = done_shards(job.work_dir, PREFIX)
    left = {number: shard for number, shard in shards.items() if number not in done}
    total = sum(map(len, shards.values()))
    found = total - sum(map(len, left.values()))
    earlier = (shard_path(job.work_dir, PREFIX, number) for number in shards.keys() - left.keys())
    found_tokens = sum(map(num_tokens, iter_records(earlier)))
    progress = Progress(config.name, total, "prompts", found, tracker=job.tracker, job="sample")
    rate: dict[str, float] = {}
    tokens = 0

    def finished(number: int, result: tuple[list[Record], dict[str, Any]]) -> None:
        nonlocal tokens
        records, machine = result
        job.output.replace()
        machines.add(machine)
        write_shard(job.work_dir, PREFIX, number, records)
        tokens += sum(map(num_tokens, records))
        # By the wall clock from the start: models are loaded in that time.
        rate["tokens_per_second"] = tokens / progress.seconds
        all_tokens = float(found_tokens + tokens)
        figures = {"sample/tokens": all_tokens, "sample/tokens_per_second": rate["tokens_per_second"]}
        progress.add(len(records), f"{rate['tokens_per_second']:,.0f} tokens/s", figures)

    run_shards(partial(_make, config), left, finished, config.workers, address)
    return rate


def _stage(config: SampleConfig, prompts: list[Prompt], restart: bool) -> StageOutput:
    from pasta.candidates.checks import check_sampled_models

    check_sampled_models(config)
    values = {key: value for key, value in to_dict(config).items() if key not in RUNNING}
    values["prompt_ids"] = digest(prompts)
    inputs = model_inputs({"model": config.model, "twin": config.twin or config.model})
    return StageOutput(
        config.output_dir.absolute(), "sample", values, inputs | config.prompts.inputs(), restart=restart
    )


def _make(config: SampleConfig, ranks: "Ranks | None" = None) -> Work:
    """On a worker: load the models once; then make each shard's records with them. Also tells the machine as it was at
    the start, and the number formats that the models have there."""
    from pasta.benchmark.machine import describe_machine
    from pasta.candidates.sampling import load_sampler
    from pasta.engine.supported import resolve_device

    sampler = load_sampler(config, ranks)
    machine = describe_machine(resolve_device(config.engine.device), sampler.number_formats())
    return lambda prompts: (sampler.sample(prompts), machine)


if __name__ == "__main__":
    run_main(main)
