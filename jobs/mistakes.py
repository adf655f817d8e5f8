"""Why training failed: what a user can do about, told in a line. His mistake on a training worker ends the job: another
try, from the last checkpoint, would end the same way.

Uses a private API of Ray Train, written against ray 2.60.0; tests/training/test_private.py fails when it is gone:
``TorchTrainer._initialize_and_run_controller`` gets the ``failure_policy``, which Ray's controller asks.
"""

from typing import Any

from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import FailureConfig

from jobs.cluster import cause_of_death
from pasta.errors import UserError


class EndsAtMistakes:
    """Ray Train's failure policy, but that a user's mistake is not tried again."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def make_decision(self, training_failed_error: Exception) -> Any:
        """Ray's decision on this failure."""
        if mistake_in(training_failed_error) is not None:
            self._policy.failure_config = FailureConfig(max_failures=0)
        return self._policy.make_decision(training_failed_error)


def end_at_mistakes(trainer: Any) -> None:
    """Do not let Ray Train try again after a user's mistake on one of ``trainer``'s workers."""
    run = trainer._initialize_and_run_controller

    def run_once(*, failure_policy: Any, **options: Any) -> Any:
        return run(failure_policy=EndsAtMistakes(failure_policy), **options)

    trainer._initialize_and_run_controller = run_once


def mistake_in(error: Exception) -> UserError | None:
    """The user's mistake that made training fail, of the first worker that has one; None if there is none."""
    failures = getattr(error, "worker_failures", {})
    found = (failures[rank] for rank in sorted(failures))
    return next((each for each in found if isinstance(each, UserError)), None)


def death_in(error: Exception) -> str | None:
    """Why a process of the run died, if training failed for that; None otherwise."""
    for failure in [
        getattr(error, "controller_failure", None),
        *getattr(error, "worker_failures", {}).values(),
    ]:
        cause = getattr(failure, "health_check_failure", failure)
        if isinstance(cause, OutOfMemoryError | RayActorError):
            smaller = "; expected fewer workers, rows or tokens in a row, or a smaller model"
            hint = smaller if isinstance(cause, OutOfMemoryError) else ""
            return f"a process of the run died ({cause_of_death(cause)}){hint}"
    return None
