"""Scheduling policy of threads: the engines' threads run before all others where there are fewer cores than threads.

A thread of the policy SCHED_BATCH does not preempt another one when it wakes (sched(7)). Each step of an engine wakes
the event loops and the gRPC threads around it. All of those have the policy SCHED_BATCH, the engines' threads
SCHED_OTHER: so the next step, for which all answers wait, is not interrupted. Where the system lacks or forbids that
policy, nothing changes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def set_batch() -> None:
    """Give all threads of this process, and those that they start from now on, the policy SCHED_BATCH."""
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            _set(int(thread), batch=True)


def is_batch() -> bool:
    """Whether this thread has the policy SCHED_BATCH."""
    return hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH


@contextmanager
def starting(*, batch: bool) -> Iterator[None]:
    """In this block, processes and threads that this thread starts get the policy SCHED_BATCH, or SCHED_OTHER."""
    before = is_batch()
    _set(0, batch=batch)
    try:
        yield
    finally:
        _set(0, batch=before)


def _set(thread: int, *, batch: bool) -> None:
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # it is forbidden or not known here, or the thread has ended meanwhile
            policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
            os.sched_setscheduler(thread, policy, os.sched_param(0))
