"""Waiting for something to become true, and no longer than that takes."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")

#: What docs/serve-a-model.md says to start Ray with: on a busy machine a proxy takes longer to start than 5 s.
PATIENT_PROXY = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}


def eventually(condition: Callable[[], T], timeout_s: float = 60.0, every_s: float = 0.05) -> T | None:
    """What ``condition()`` is once it is true, or at the end of the time; a service that does not answer is asked
    again."""
    deadline, found = time.monotonic() + timeout_s, None
    while not found and time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            found = condition()
            if found:
                break
        time.sleep(every_s)
    return found
