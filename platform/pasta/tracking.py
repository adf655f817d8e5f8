"""Weights & Biases, on one process, offline unless told otherwise.

Logged names are listed where they are logged. A run that goes on keeps its id, which lies in its directory, so that a
stage is one run after ``wandb sync``.

The only module that uses a private API of wandb, ``wandb.env.SERVICE``, written against wandb 0.31.0;
tests/training/test_private.py fails when it is gone.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pasta.errors import UserError, first_line
from pasta.files import read_text, write_whole

#: The file in a run's directory that holds its id.
_ID = "wandb-run-id"
#: Where W&B keeps tables until they are uploaded, and logs: the home, unless these variables name another place.
_PLACES = ("WANDB_DATA_DIR", "WANDB_CACHE_DIR")
#: W&B's own limit.
_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class TrackingSection:
    """Weights & Biases. ``offline`` writes runs that ``wandb sync`` uploads later."""

    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "pasta"
    group: str | None = None

    def __post_init__(self) -> None:
        if len(self.project) > _NAME_CHARS:
            raise ValueError(f"project {self.project!r}: expected at most {_NAME_CHARS} characters")
        if found := set("/\\#?%:").intersection(self.project):
            raise ValueError(f"project {self.project!r}: expected a name without {min(found)!r}")


class Tracker:
    """A tracker that records nothing: for ``mode: disabled``, and for all ranks but the first."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record metrics of one step."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Record a table."""

    def image(self, name: str, path: Path) -> None:
        """Record a picture from its file."""

    def summary(self, figures: Mapping[str, float]) -> None:
        """Record the metrics of the whole run."""

    def finish(self) -> None:
        """Flush and close; nothing can be recorded after."""


class WandbTracker(Tracker):
    """A Weights & Biases run, called ``id``: a new one, or the one whose id is in ``run_dir``, where all of it lies.

    The home may be full or not writable, and a run's directory may be uploaded from another machine.
    """

    def __init__(
        self, options: TrackingSection, run_dir: Path, name: str, job: str, config: Mapping[str, Any]
    ) -> None:
        import wandb
        from wandb.env import SERVICE

        self._wandb = wandb
        directory = run_dir.absolute()
        self.id = _run_id(directory)
        self._places = [name for name in _PLACES if name not in os.environ]
        os.environ.update(dict.fromkeys(self._places, str(directory / "wandb")))
        try:
            self._run = wandb.init(
                project=options.project,
                group=options.group or name,
                name=name,
                job_type=job,
                id=self.id,
                resume="allow" if options.mode == "online" else None,
                config=dict(config),
                dir=str(directory),
                mode="online" if options.mode == "online" else "offline",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            self._leave_places()
            raise UserError(
                f"tracking.mode: {options.mode}: W&B has not begun a run ({first_line(error)}); expected a key (wandb "
                "login, or WANDB_API_KEY) and a network, or offline, whose runs wandb sync uploads later"
            ) from None
        # wandb names its service here for processes started later. Each worker must have a service of its own: a shared
        # one keeps the run of a worker that was killed, and refuses it to the worker's replacement.
        os.environ.pop(SERVICE, None)
        # A table without a step would end the one that is being logged, and W&B drops what else is logged for it.
        self._step: int | None = None

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._step = step
        self._run.log(dict(figures), step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        made = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({name: made}, step=self._step)

    def image(self, name: str, path: Path) -> None:
        self._run.log({name: self._wandb.Image(str(path))}, step=self._step)

    def summary(self, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            self._run.summary[key] = value

    def finish(self) -> None:
        self._run.finish()
        self._leave_places()

    def _leave_places(self) -> None:
        for name in self._places:
            os.environ.pop(name, None)


def _run_id(directory: Path) -> str:
    path = directory / _ID
    if not path.is_file():
        write_whole(path, secrets.token_hex(6) + "\n")
    return read_text(path).strip()


def forget_run(run_dir: Path) -> None:
    """Have the next tracker in ``run_dir`` begin another run: what is made anew is no continuation."""
    (run_dir / _ID).unlink(missing_ok=True)


def start_tracker(
    options: TrackingSection, *, run_dir: Path, name: str, job: str, config: Mapping[str, Any], rank: int = 0
) -> Tracker:
    """A tracker for one stage of work. Only rank 0 records. Raises UserError if ``run_dir`` cannot be written, or W&B
    refuses or cannot be reached."""
    if rank != 0 or options.mode == "disabled":
        return Tracker()
    return WandbTracker(options, run_dir, name, job, config)
