"""Ctrl-C, pressed in the tests' own process."""

import contextlib
import os
import signal


def press_ctrl_c() -> None:
    """Raises what the handler of this moment raises."""
    os.kill(os.getpid(), signal.SIGINT)


def press_and_swallow() -> None:
    """As where a finalizer runs just then, or somebody's ``except:``."""
    with contextlib.suppress(KeyboardInterrupt):
        press_ctrl_c()
