"""Who runs first where there are more threads than cores: the engines.

A thread of the policy SCHED_BATCH does not take the core from another one when it is woken (sched(7)). Everything
around an engine is woken by each of its steps, and would interrupt the next one, which all answers wait for.
Without Linux, or where the system forbids it, nothing changes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def give_way() -> None:
    """All threads of this process, and those that they start from now on."""
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            _set(int(thread), batch=True)


@contextmanager
def giving_way() -> Iterator[None]:
    """What is started meanwhile by this thread: processes and threads."""
    with _as(batch=True):
        yield


@contextmanager
def first() -> Iterator[None]:
    """The opposite: what is started meanwhile by this thread does not give way."""
    with _as(batch=False):
        yield


@contextmanager
def _as(*, batch: bool) -> Iterator[None]:
    before = gives_way()
    _set(0, batch=batch)
    try:
        yield
    finally:
        _set(0, batch=before)


def gives_way() -> bool:
    """Whether this thread does."""
    return hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH


def _set(thread: int, *, batch: bool) -> None:
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # it is forbidden or not known here, or the thread has ended meanwhile
            policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
            os.sched_setscheduler(thread, policy, os.sched_param(0))
