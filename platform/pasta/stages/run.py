"""Runs one stage of a job: what annotate, sample, score and evaluate have in common, and training in part."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pasta.config import to_dict
from pasta.errors import CutShort, UserError
from pasta.files import check_directory
from pasta.rows import short_repr
from pasta.signals import Terminated, ended_by_sigterm
from pasta.stages.lock import sole_writer
from pasta.stages.stage import Manifest, Stage, StageOutput
from pasta.tracking import Tracker, TrackingSection, forget_run, start_tracker

_NAME_CHARS = 200
#: Characters of a stage's identity in a directory's name.
_IDENTITY_CHARS = 8


class StageConfig(Protocol):
    """The part of a job's configuration that says what its run is called, where it goes and who watches it."""

    @property
    def name(self) -> str: ...
    @property
    def output_dir(self) -> Path: ...
    @property
    def run_dir(self) -> Path: ...
    @property
    def tracking(self) -> TrackingSection: ...


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage under way: ``work_dir`` is where it writes, ``tracker`` where it records."""

    config: StageConfig
    output: StageOutput
    work_dir: Path
    tracker: Tracker

    def finish(self, what: str, figures: Mapping[str, Any], code_version: str) -> None:
        """Put the output in place with its manifest, and say that ``what`` was written."""
        self.output.finish(figures, code_version)
        print(f"{self.config.name}: {what} written to {self.config.output_dir}", flush=True)
        tell_changed(self.config.name, self.output)


class OnDisk(Protocol):
    """A stage of data (``StageOutput``) or a trained model (``TrainingStage``), which may have been done before, and
    may be told to forget that: ``restarts`` until it has done so."""

    identity: str
    output_dir: Path

    @property
    def restarts(self) -> bool: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def is_resumed(self) -> bool: ...

    def made(self, manifest: Manifest) -> bool: ...
    def reuses(self, directory: Path) -> bool: ...
    def difference(self, other: Manifest) -> str: ...
    def newer_inputs(self, directory: Path) -> list[str]: ...


@contextmanager
def stage_run(
    config: StageConfig, output: StageOutput, *, resumes: str, option: str = "--restart"
) -> Iterator[StageRun]:
    """Start a stage, or go on with it, for the time of the block; its tracker ends with the block.

    After Ctrl-C, or SIGTERM, the user is told where the same command ``resumes``, without ``option`` where that has
    made it restart. An earlier output stays until the block replaces it (``StageOutput.replace``) or finishes. Raises
    UserError for a ``run_dir`` that cannot be made, if it is needed.
    """
    run_dir = config.run_dir.absolute() / f"{config.name}-{output.identity[:8]}"
    if config.tracking.mode != "disabled":
        check_run_dir(config)
        check_apart(run_dir, config.output_dir, "run_dir")
        output.check_outside(run_dir, "run_dir")
    with resumable(config.name, resumes, output, option), sole_writer(output.output_dir):
        others = [path for path in output.unfinished_others() if not output.reuses(path)]
        if not output.is_resumed and others and output.earlier is None:
            print(f"{config.name}: {starts_anew(others)}", flush=True)
        if output.restarts:
            forget_run(run_dir)
        work_dir = output.start()
        tracker = start_tracker(
            config.tracking, run_dir=run_dir, name=config.name, job=output.stage, config=to_dict(config)
        )
        try:
            yield StageRun(config, output, work_dir, tracker)
        finally:
            tracker.finish()


def starts_anew(others: Sequence[Path]) -> str:
    """A line for a run that finds nothing of its own to go on with, but ``others``: unfinished work."""
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    return (
        "starts from the beginning; unfinished work with another configuration or other inputs stays in "
        f"{others[0]}{more}"
    )


def check_apart(path: Path, output_dir: Path, key: str) -> None:
    """Raise UserError, naming ``key``, for a directory in ``output_dir``, which appears when it is complete."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(output_dir)):
        raise UserError(
            f"{key}: {path}: lies in output_dir, which appears when it is complete; name one outside"
        )


def check_run_dir(config: StageConfig) -> None:
    """Raise UserError, naming the key, if the run's directory, which is named after it, cannot be made."""
    if len(config.name) > _NAME_CHARS:
        raise UserError(f"name: {short_repr(config.name)}: expected at most {_NAME_CHARS} characters")
    check_directory(config.run_dir, "run_dir", config.run_dir / f"{config.name}-{'.' * _IDENTITY_CHARS}")


@contextmanager
def resumable(name: str, where: str, stage: OnDisk, option: str = "--restart") -> Iterator[None]:
    """Tell the user after Ctrl-C, or SIGTERM, that the same command goes on ``where``; the KeyboardInterrupt, or
    Terminated, passes through.

    A CutShort says it too. If ``stage`` has forgotten what was done before, as ``option`` asked, it would forget it
    again: then the command goes on without that option.
    """
    restarts = stage.restarts
    try:
        with ended_by_sigterm():
            yield
    except (KeyboardInterrupt, Terminated, CutShort) as end:
        without = f" without {option}" if restarts and not stage.restarts else ""
        goes_on = f"the same command{without} goes on {where}"
        if isinstance(end, CutShort):
            raise UserError(f"{end}; {goes_on}") from None
        print(f"{name}: {goes_on}", file=sys.stderr)
        raise


def tell_changed(name: str, stage: Stage) -> None:
    """Say which inputs are others by now: workers read some at their own time, so that the output may be of both."""
    for changed in stage.changed_inputs():
        print(f"{name}: {changed} has changed since this run began; --restart reads it", flush=True)


def nothing_to_do(name: str, output_dir: Path, stage: OnDisk, restart: str) -> bool:
    """Whether the stage's output exists already. If so, says it, what ``--restart`` would do, and which of its inputs
    have been made again since."""
    if stage.is_done:
        print(f"{name}: nothing to do: {output_dir} has this configuration (--restart {restart})")
        for newer in stage.newer_inputs(output_dir):
            print(f"{name}: {newer} was made again since; --restart reads it")
    return stage.is_done
