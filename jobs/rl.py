"""Reinforcement learning (GRPO under thread masks) as a Ray job: Ray Train workers learn, engines in Ray actors sample:

    python -m jobs.rl --config configs/rl/atlas.yaml --set reward.quality_weight=inf

The same command again goes on where the last one stopped, or says that nothing is left to do. Single keys are set
with ``--set objective.kl_weight=0.01``; ``--restart`` forgets what was done.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial

from jobs import rollouts
from jobs.arguments import job_parser, parse_arguments
from jobs.cluster import check_engine, is_local, ray_cluster, takes_gpus
from jobs.endpoints import judge_key
from jobs.pool import Work, run_shards
from jobs.training import RESTART, RESUMES, fit
from pasta.data.prompts import Prompt
from pasta.entrypoint import run_main
from pasta.evaluation.prompts import read_prompts
from pasta.rl.config import RlConfig
from pasta.stages.lock import sole_writer
from pasta.stages.progress import Progress
from pasta.stages.records import Record, RecordFile
from pasta.stages.run import nothing_to_do, resumable
from pasta.stages.shards import split_into_shards
from pasta.training.run import TrainingStage
from serve.imports import uncollected

CONFIG = RlConfig
#: How many prompts the twin answers at a time.
SHARD = 32


def parser() -> ArgumentParser:
    """The command line."""
    return job_parser("rl", (__doc__ or "").split(" as a")[0], "configs/rl/atlas.yaml", RESTART)


def main() -> int:
    config, options = parse_arguments(parser(), RlConfig)
    return run(config, restart=options.restart, address=options.address)


def stage(config: RlConfig, *, restart: bool = False) -> TrainingStage:
    """The run on disk. Raises UserError for an input that is not there."""
    from pasta.rl.train import inputs

    return TrainingStage("rl", config, inputs(config), restart=restart)


def run(config: RlConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Let the twin answer the prompts, train on Ray workers, and leave the model in ``config.output_dir``."""
    with uncollected():
        import datasets

        from pasta.candidates.checks import check_room
        from pasta.engine.memory import weight_bytes
        from pasta.judges.make import check_asked
        from pasta.rl.train import check_config, prepare

    training = stage(config, restart=restart)
    if nothing_to_do(config.name, config.output_dir, training, "trains it again"):
        return 0
    check_engine(config.engine, config.rollout.workers, address, (config.model.init_from, config.twin))
    datasets.disable_progress_bars()
    tokenizer, prompts, key = check_config(config), read_prompts(config.prompts), judge_key(config.judge)
    check_asked(config.judge, (prompt.messages for prompt in prompts))
    check_room(str(config.model.init_from), prompts, config.limits, config.engine.slot_tokens)
    published = weight_bytes(str(config.model.init_from), config.engine.dtype)
    places = config.workers.num_workers + config.rollout.workers.num_workers
    with (
        resumable(config.name, RESUMES, training),
        # The old weights stay until the actors have the new ones.
        ray_cluster(address, places, config.workers.threads, objects=2 * published),
    ):
        _check_places(config, address)
        # Of two runs of one configuration at once the later one is refused: before the twin answers for it, too.
        with sole_writer(training.run_dir, "run_dir"):
            prepared = prepare(
                config,
                tokenizer,
                prompts,
                partial(_baselines, config, address),
                config.run_dir.absolute() / "data",
            )
        made = "found" if prepared.reused else "made"
        print(
            f"{config.name}: prompts {made}: {prepared.num_prompts:,}; left out {prepared.num_left_out} that are too "
            f"long or whose baseline is cut; {config.num_batches:,} batches of {config.batch_answers} answers",
            flush=True,
        )
        fit(
            partial(rollouts.train_with_rollouts, api_key=key),
            config,
            training,
            data_dir=prepared.path,
            address=address,
        )
    return 0


def _check_places(config: RlConfig, address: str | None) -> None:
    """Trainers and rollout actors hold their CPUs and GPUs at the same time. Prints a warning on stderr if the cluster
    has too few for both: without a word training would begin, and wait for its first answers."""
    trainers, actors = config.workers.num_workers, config.rollout.workers.num_workers
    held = trainers if takes_gpus(config.workers, address, together=trainers) else 0
    key = "rollout.workers.num_workers"
    samples = takes_gpus(config.rollout.workers, address, together=held + actors, key=key)
    if is_local(address):
        return
    import ray

    found = ray.cluster_resources()
    for name, count in (("CPU", trainers - held + actors), ("GPU", held + actors * samples)):
        if found.get(name, 0) < count:
            print(
                f"{config.name}: workers.num_workers and {key} take {count} {name}s at once, and the cluster has "
                f"{found.get(name, 0):g}: the job waits until there are more",
                file=sys.stderr,
                flush=True,
            )


def _baselines(config: RlConfig, address: str | None, prompts: Sequence[Prompt], answers: RecordFile) -> None:
    """Have the twin answer the prompts that have no record yet, by an actor pool that ends before training begins."""
    left = [prompt for prompt in prompts if prompt.id not in answers]
    progress = Progress(
        f"{config.name}, answers of the twin", len(prompts), "prompts", len(prompts) - len(left)
    )

    def finished(number: int, records: list[Record]) -> None:
        for record in records:
            answers.add(record["id"], record)
        progress.add(len(records))

    make, shards = partial(_twin, config), split_into_shards(left, SHARD)
    run_shards(make, shards, finished, config.rollout.workers, address)


def _twin(config: RlConfig) -> Work:
    """On a worker: the twin, loaded once."""
    from pasta.rl.sampling import Baselines

    return Baselines(config).answer


if __name__ == "__main__":
    run_main(main)
