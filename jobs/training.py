"""Shared by the training jobs: their command line, and a way to run a library function on Ray Train workers.

Uses private APIs of Ray Train, as jobs/mistakes.py does, written against ray 2.60.0; tests/training/test_private.py
fails when one of them is gone:

- ``TorchTrainer._register_sigint_handler``: what Ctrl-C does.
- ``TorchTrainer._create_default_callbacks``, with those of ``UNUSED`` and ``CLEANER`` among them: what Ray's controller
  starts beside the workers.
- ``TorchTrainer._initialize_and_run_controller``, and of its ``scaling_policy`` what ``REQUESTS`` names: how Ray's
  controller asks for machines, through another process.
"""

import os
import pickle
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from jobs.cluster import cause_of_death, code_version, is_local, ray_cluster, takes_gpus
from pasta.benchmark.machine import num_cores
from pasta.engine.head_files import WEIGHTS
from pasta.errors import CutShort
from pasta.files import full_disk_told
from pasta.signals import interrupted_by
from pasta.stages.lock import sole_writer
from pasta.stages.run import starts_anew, tell_changed
from pasta.stages.workers import WorkersSection
from pasta.training.config import TrainingConfig
from pasta.training.memory import keep_freed_memory
from pasta.training.run import RunContext, TrainingStage
from pasta.training.storage import open_url
from serve.imports import uncollected
from serve.ray_start import check_ray

Train = Callable[[Any, RunContext], Any]
#: Starts a process that hands out shards of Ray Data. A job's workers read their data from disk instead.
UNUSED = "DatasetsCallback"
#: Starts a process that frees the workers' places should Ray Train's controller die.
CLEANER = "PlacementGroupCleanerCallback"
#: The methods that start a process which asks a cluster's autoscaler for machines, and ask it.
REQUESTS = ("after_controller_start", "_maybe_send_resource_request")

#: Ray Train's folder of a run.
_RUN = "ray"

RESTART = "train from the start, whatever was done before"
#: Where a training job goes on after Ctrl-C.
RESUMES = "from the last checkpoint"


def fit(
    train: Train, config: TrainingConfig, stage: TrainingStage, *, data_dir: Path, address: str | None
) -> None:
    """Run ``train(config, context)`` on ``config.workers``, from the last checkpoint that Ray knows of.

    Raises a worker's UserError at once, CutShort if a disk is full, or Ray or Ray Train's controller dies, and, once
    workers have failed more often than ``max_failures``, CutShort if they died, else what they raise. A
    KeyboardInterrupt passes through; the job, which has prepared the data too, tells the user how to go on
    (``resumable``).
    """
    print(f"{config.name}: run directory {stage.run_dir}", flush=True)
    # Runs of one configuration that write two models share a run's directory.
    with sole_writer(config.output_dir), sole_writer(stage.run_dir, "run_dir"):
        if not stage.is_resumed and (others := stage.unfinished_others()):
            print(f"{config.name}: {starts_anew(others)}", flush=True)
        stage.start(data_dir)
        had_heads = (config.output_dir / WEIGHTS).is_file()
        _fit(train, config, stage, data_dir, address)
    print(f"{config.name}: model written to {config.output_dir}")
    if had_heads and not (config.output_dir / WEIGHTS).is_file():
        print(f"{config.name}: the draft heads there were of the model before, and are gone with it")
    tell_changed(config.name, stage)


def _fit(
    train: Train, config: TrainingConfig, stage: TrainingStage, data_dir: Path, address: str | None
) -> None:
    workers = config.workers
    with ray_cluster(address, workers.num_workers, workers.threads):
        # Ray is imported after its environment is set.
        from ray.exceptions import RayActorError
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer

        from jobs.checkpoint_list import KeepsCheckpointList
        from jobs.mistakes import death_in, end_at_mistakes, mistake_in

        storage, filesystem = _checkpoints(stage)
        directory = f"{storage}/{_RUN}"
        if told := look_at_checkpoints(stage, directory, filesystem):
            print(f"{config.name}: {told}", flush=True)
        use_gpu = takes_gpus(workers, address, together=workers.num_workers)
        if not use_gpu:
            _tell_idle_cpus(config.name, workers, address)
        trainer = TorchTrainer(
            _worker,
            train_loop_config={
                # Pickled here: Ray Train's controller unpickles its settings, and would import everything that training
                # needs.
                "job": pickle.dumps((train, config, stage)),
                "data_dir": str(data_dir),
                "work_dir": str(stage.run_dir),
                "cwd": os.getcwd(),
                "use_gpu": use_gpu,
                "code_version": code_version(),
            },
            torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(num_workers=workers.num_workers, use_gpu=use_gpu),
            run_config=RunConfig(
                name=_RUN,
                storage_path=storage,
                storage_filesystem=filesystem,
                failure_config=FailureConfig(max_failures=workers.max_failures),
                checkpoint_config=CheckpointConfig(num_to_keep=config.schedule.keep_checkpoints),
                callbacks=[KeepsCheckpointList(directory, filesystem)],
            ),
        )
        # Ray's own handler of Ctrl-C ends this process with exit code 1, without a word of how to go on.
        trainer._register_sigint_handler = lambda controller: None
        without_helpers(trainer, local=is_local(address))
        end_at_mistakes(trainer)
        try:
            with interrupted_by(check_ray):
                trainer.fit()
        except TrainingFailedError as error:
            if (mistake := mistake_in(error)) is not None:
                raise mistake from None
            if (death := death_in(error)) is not None:
                raise CutShort(death) from None
            raise
        except RayActorError as error:  # those of workers are Ray Train's own affair
            raise CutShort(f"Ray Train's controller died ({cause_of_death(error)})") from None


def _tell_idle_cpus(name: str, workers: WorkersSection, address: str | None) -> None:
    """Say that ``workers`` without GPUs leave at least half of this machine's CPUs idle: they take one by default, most
    libraries all."""
    used, here = workers.num_workers * workers.threads, num_cores()
    if is_local(address) and 2 * used <= here:
        print(
            f"{name}: trains on {used} of {here} CPUs; workers.threads and workers.num_workers take more",
            flush=True,
        )


def without_helpers(trainer: Any, *, local: bool) -> None:
    """Do not start helper processes that this job has no use for: they take a second or two of processor time each.

    The places of a ``local`` Ray end with this process, and there is no machine to ask for. Its cleaner would ask a
    dashboard every second, and there is none.
    """
    callbacks, needless = trainer._create_default_callbacks, {UNUSED, CLEANER} if local else {UNUSED}
    trainer._create_default_callbacks = lambda: [
        each for each in callbacks() if type(each).__name__ not in needless
    ]
    if not local:
        return
    run = trainer._initialize_and_run_controller

    def run_without_requests(*, scaling_policy: Any, **options: Any) -> Any:
        for name in REQUESTS:
            setattr(scaling_policy, name, lambda *_: None)
        return run(scaling_policy=scaling_policy, **options)

    trainer._initialize_and_run_controller = run_without_requests


def look_at_checkpoints(stage: TrainingStage, directory: str, filesystem: Any) -> str | None:
    """Mend Ray's list of checkpoints in ``directory`` if it was cut. Returns a line if it was, or if there is none
    though this run has made some: another value of ``checkpoints`` makes no other run, and leads elsewhere."""
    from jobs.checkpoint_list import has_list, mend_checkpoint_list

    mended = mend_checkpoint_list(directory, filesystem)
    if mended is not None or not stage.has_checkpoints or has_list(directory, filesystem):
        return mended
    return (
        f"checkpoints: {directory} has none of this run, which made some: training starts from the beginning; name the "
        "place where they are to go on from there"
    )


def _checkpoints(stage: TrainingStage) -> tuple[str, Any]:
    """The place of Ray Train's checkpoints: a path, and its file system if it is not the local one."""
    if stage.checkpoints is None:
        return str(stage.run_dir), None
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    filesystem, path = open_url(stage.checkpoints)
    return path, PyFileSystem(FSSpecHandler(filesystem))


def forget_launcher(environment: MutableMapping[str, str]) -> None:
    """Take out what ``accelerate launch`` and its configuration leave: accelerate would obey it, and not the recipe's
    ``precision``."""
    for name in [name for name in environment if name.startswith("ACCELERATE_")]:
        del environment[name]


def _worker(settings: dict[str, Any]) -> None:
    """One Ray Train worker: the library's function with Ray behind its callbacks."""
    forget_launcher(os.environ)
    train: Train
    config: TrainingConfig
    stage: TrainingStage
    with uncollected():
        import ray.train
        import torch

        train, config, stage = pickle.loads(settings["job"])
    os.chdir(settings["cwd"])  # relative paths in a configuration mean the same on every worker
    torch.set_num_threads(config.workers.threads)
    if not settings["use_gpu"]:
        keep_freed_memory()
    checkpoint = ray.train.get_checkpoint()

    def report(metrics: dict[str, float], directory: Path | None) -> None:
        reported = None
        if directory is not None:
            stage.replace()
            reported = ray.train.Checkpoint.from_directory(directory)
        ray.train.report(metrics, checkpoint=reported)

    def context(resume_from: Path | None) -> RunContext:
        return RunContext(
            data_dir=Path(settings["data_dir"]),
            work_dir=Path(settings["work_dir"]),
            use_gpu=settings["use_gpu"],
            report=report,
            stage=stage,
            resume_from=resume_from,
            code_version=settings["code_version"],
        )

    with full_disk_told(stage.run_dir, "run_dir"):
        if checkpoint is None:
            train(config, context(None))
        else:
            with checkpoint.as_directory() as directory:
                train(config, context(Path(directory)))
