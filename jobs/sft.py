"""Supervised fine-tuning as a Ray Train job, on two CPU workers or on a cluster of GPUs:

    python -m jobs.sft --config configs/sft/atlas-twin.yaml

The same command again goes on where the last one stopped, or says that nothing is left to do. Single keys are set
with ``--set optimisation.learning_rate=1e-3``; ``--restart`` forgets what was done.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import datasets

from jobs.cluster import code_version, ray_cluster
from pasta.config import fingerprint, load_config
from pasta.data.dataset import Prepared
from pasta.entrypoint import run_main
from pasta.training.config import SftConfig
from pasta.training.save import read_card
from pasta.training.sft import SftContext, prepare, train


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.sft", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--config", type=Path, required=True, help="a YAML file such as configs/sft/atlas-twin.yaml"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--restart", action="store_true", help="train from the start, whatever was done before"
    )
    parser.add_argument(
        "--address", default=None, help="address of a running Ray cluster; by default a local one"
    )
    arguments = parser.parse_args()
    config = load_config(arguments.config, SftConfig, arguments.overrides)
    return run(config, restart=arguments.restart, address=arguments.address)


def run(config: SftConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Prepare the data, train on Ray workers, and leave the model in ``config.output_dir``."""
    identity = fingerprint(config)
    run_dir = (config.run_dir / f"{config.name}-{identity[:8]}").absolute()
    card = read_card(config.output_dir)
    if restart:
        shutil.rmtree(run_dir, ignore_errors=True)
    elif card is not None and card.get("config_fingerprint") == identity:
        print(
            f"{config.name}: nothing to do: {config.output_dir} has this configuration (--restart trains it again)"
        )
        return 0
    datasets.disable_progress_bars()
    prepared = prepare(config, config.run_dir.absolute() / "data", num_processes=config.workers.num_workers)
    _describe(config, prepared, run_dir)
    try:
        _fit(config, prepared, run_dir, address)
    except KeyboardInterrupt:
        print(f"{config.name}: the same command goes on from the last checkpoint", file=sys.stderr)
        raise
    print(f"{config.name}: model written to {config.output_dir}")
    return 0


def _describe(config: SftConfig, prepared: Prepared, run_dir: Path) -> None:
    made = "found" if prepared.reused else "made"
    print(
        f"{config.name}: data {made}: {prepared.num_documents:,} documents, {prepared.num_tokens:,} tokens "
        f"({prepared.num_targets:,} targets) in {prepared.num_rows:,} rows, "
        f"{prepared.num_too_long} documents too long"
    )
    print(f"{config.name}: run directory {run_dir}", flush=True)


def _fit(config: SftConfig, prepared: Prepared, run_dir: Path, address: str | None) -> None:
    workers = config.workers
    with ray_cluster(address, workers.num_workers, workers.threads):
        # Ray is imported after its environment is set.
        import ray
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        use_gpu = workers.use_gpu if workers.use_gpu != "auto" else ray.cluster_resources().get("GPU", 0) > 0
        trainer = TorchTrainer(
            _worker,
            train_loop_config={
                "config": config,
                "data_dir": str(prepared.path),
                "work_dir": str(run_dir),
                "cwd": os.getcwd(),
                "use_gpu": bool(use_gpu),
                "code_version": code_version(),
            },
            torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(num_workers=workers.num_workers, use_gpu=bool(use_gpu)),
            run_config=RunConfig(
                name="ray",
                storage_path=str(run_dir),
                failure_config=FailureConfig(max_failures=workers.max_failures),
                checkpoint_config=CheckpointConfig(num_to_keep=config.schedule.keep_checkpoints),
            ),
        )
        trainer.fit()


def _worker(settings: dict[str, Any]) -> None:
    """One Ray Train worker: the library's ``train`` with Ray behind its callbacks."""
    import ray.train
    import torch

    config: SftConfig = settings["config"]
    os.chdir(settings["cwd"])  # relative paths in a configuration mean the same on every worker
    torch.set_num_threads(config.workers.threads)
    checkpoint = ray.train.get_checkpoint()

    def report(metrics: dict[str, float], directory: Path | None) -> None:
        reported = ray.train.Checkpoint.from_directory(directory) if directory is not None else None
        ray.train.report(metrics, checkpoint=reported)

    def context(resume_from: Path | None) -> SftContext:
        return SftContext(
            data_dir=Path(settings["data_dir"]),
            work_dir=Path(settings["work_dir"]),
            use_gpu=settings["use_gpu"],
            report=report,
            resume_from=resume_from,
            code_version=settings["code_version"],
        )

    if checkpoint is None:
        train(config, context(None))
    else:
        with checkpoint.as_directory() as directory:
            train(config, context(Path(directory)))


if __name__ == "__main__":
    run_main(main)
