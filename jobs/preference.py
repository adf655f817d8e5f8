"""Preference training (BoNBoN, DPO or IPO) as a Ray Train job, on two CPU workers or on a cluster of GPUs:

    python -m jobs.preference --config configs/preference/atlas.yaml --set data.source=runs/scores/mine

The same command again goes on where the last one stopped, or says that nothing is left to do. Single keys are set
with ``--set objective.alpha=0.01``; ``--restart`` forgets what was done.
"""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import check_gpus
from jobs.training import RESTART, RESUMES, fit
from pasta.entrypoint import run_main
from pasta.stages.run import nothing_to_do, resumable
from pasta.training.preference_config import PreferenceConfig
from pasta.training.run import TrainingStage, slow_start
from serve.imports import uncollected

if TYPE_CHECKING:
    from pasta.data.pairs import PreparedPairs

CONFIG = PreferenceConfig


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser(
        "preference", (__doc__ or "").split(", on")[0], "configs/preference/atlas.yaml", RESTART
    )


def main() -> int:
    config, options = parse_arguments(parser(), PreferenceConfig)
    return run(config, restart=options.restart, address=options.address)


def stage(config: PreferenceConfig, *, restart: bool = False) -> TrainingStage:
    """The run on disk. Raises UserError for an input that is not there."""
    from pasta.training.preference import inputs

    return TrainingStage("preference", config, inputs(config), restart=restart)


def run(config: PreferenceConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Prepare the pairs, train on Ray workers, and leave the model in ``config.output_dir``."""
    with uncollected():
        import datasets

        from pasta.training.preference import effective_beta, prepare, train

    training = stage(config, restart=restart)
    if nothing_to_do(config.name, config.output_dir, training, "trains it again"):
        return 0
    check_gpus(config.workers, address)
    datasets.disable_progress_bars()
    with resumable(config.name, RESUMES, training):
        cache_dir = config.run_dir.absolute() / "data"
        prepared = prepare(config, cache_dir, num_processes=config.workers.num_workers)
        _describe(config, prepared, effective_beta(config.objective))
        if said := slow_start(config.optimisation, prepared.num_pairs, config.workers.num_workers):
            print(f"{config.name}: {said}")
        fit(train, config, training, data_dir=prepared.path, address=address)
    return 0


def _describe(config: PreferenceConfig, prepared: "PreparedPairs", beta: float) -> None:
    made = "found" if prepared.reused else "made"
    print(
        f"{config.name}: data {made}: {prepared.num_pairs:,} pairs, {prepared.num_eval_pairs:,} held out, "
        f"{prepared.num_tokens:,} tokens; left out {prepared.num_too_long} too long, {prepared.num_equal} equal"
    )
    print(f"{config.name}: {config.objective.loss} with beta {beta:.5g}")


if __name__ == "__main__":
    run_main(main)
