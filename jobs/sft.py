"""Supervised fine-tuning as a Ray Train job, on two CPU workers or on a cluster of GPUs:

    python -m jobs.sft --config configs/sft/atlas-twin.yaml

The same command again goes on where the last one stopped, or says that nothing is left to do. Single keys are set
with ``--set optimisation.learning_rate=1e-3``; ``--restart`` forgets what was done.
"""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import check_gpus
from jobs.training import RESTART, RESUMES, fit
from pasta.entrypoint import run_main
from pasta.stages.run import nothing_to_do, resumable
from pasta.training.config import SftConfig
from pasta.training.run import TrainingStage, slow_start
from serve.imports import uncollected

if TYPE_CHECKING:
    from pasta.data.dataset import Prepared

CONFIG = SftConfig


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser("sft", (__doc__ or "").split(",")[0], "configs/sft/atlas-twin.yaml", RESTART)


def main() -> int:
    config, options = parse_arguments(parser(), SftConfig)
    return run(config, restart=options.restart, address=options.address)


def stage(config: SftConfig, *, restart: bool = False) -> TrainingStage:
    """The run on disk. Raises UserError for an input that is not there."""
    from pasta.training.sft import inputs

    if config.draft_heads is not None:
        from pasta.training.heads import HeadsStage

        return HeadsStage(config, inputs(config), restart=restart)
    return TrainingStage("sft", config, inputs(config), restart=restart)


def run(config: SftConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Prepare the data, train on Ray workers, and leave the model in ``config.output_dir``."""
    with uncollected():
        import datasets

        from pasta.training.model import other_positions
        from pasta.training.sft import prepare, train

    training = stage(config, restart=restart)
    if nothing_to_do(config.name, config.output_dir, training, "trains it again"):
        return 0
    check_gpus(config.workers, address)
    datasets.disable_progress_bars()
    cache_dir = config.run_dir.absolute() / "data"
    with resumable(config.name, RESUMES, training):
        prepared = prepare(config, cache_dir, num_processes=config.workers.num_workers)
        if said := other_positions(config.model):
            print(f"{config.name}: {said}")
        _describe(config, prepared)
        if said := slow_start(config.optimisation, prepared.num_rows, config.workers.num_workers):
            print(f"{config.name}: {said}")
        fit(train, config, training, data_dir=prepared.path, address=address)
    return 0


def _describe(config: SftConfig, prepared: "Prepared") -> None:
    made = "found" if prepared.reused else "made"
    held_out = f", {prepared.num_eval_too_long} held-out ones too" if prepared.num_eval_too_long else ""
    print(
        f"{config.name}: data {made}: {prepared.num_documents:,} documents, {prepared.num_tokens:,} tokens "
        f"({prepared.num_targets:,} targets) in {prepared.num_rows:,} rows, "
        f"{prepared.num_too_long} documents too long{held_out}"
    )
    data, found = config.data, prepared.num_documents + config.data.eval_documents
    if data.documents is not None and data.documents > found:
        print(
            f"{config.name}: data.documents: {data.documents:,}, but {data.source} has {found:,}: all are taken"
        )
    if prepared.num_other_lengths:
        tokenizer = config.model.tokenizer or config.model.init_from
        print(
            f'{config.name}: data.source: the estimates (tokens="…") of {prepared.num_other_lengths:,} of '
            f"{prepared.num_chunks:,} chunks are not their lengths by this model's tokenizer; annotate with "
            f"data.tokenizer={tokenizer} to have them right"
        )
    if prepared.num_eval_trained:
        print(
            f"{config.name}: data.eval_documents: {prepared.num_eval_trained} of {config.data.eval_documents} have a "
            "prompt that is trained on, too: held-out figures look better than they are"
        )


if __name__ == "__main__":
    run_main(main)
