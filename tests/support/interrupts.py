"""Ctrl-C and SIGTERM in the tests' own process."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn


def press_ctrl_c() -> None:
    """Raises what the handler of this moment raises."""
    os.kill(os.getpid(), signal.SIGINT)


def send_sigterm() -> None:
    """Raises what the handler of this moment raises, and fails the test where there is none."""
    assert callable(signal.getsignal(signal.SIGTERM)), "SIGTERM would end the tests"
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt(*_: Any, **options: Any) -> NoReturn:
    """Stands for a function in which Ctrl-C comes."""
    raise KeyboardInterrupt


def interrupting_at(line: str, how: Callable[[], object] = interrupt) -> Callable[..., None]:
    """``print`` for a user who reads ``line`` and presses Ctrl-C at once, or ends the job in another way."""

    def told(text: str, **options: Any) -> None:
        print(text, **options)
        if line in text:
            how()

    return told


def press_and_swallow() -> None:
    """As where a finalizer runs just then, or somebody's ``except:``."""
    with contextlib.suppress(KeyboardInterrupt):
        press_ctrl_c()
