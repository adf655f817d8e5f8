"""Ends a service's open requests before the service ends."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from pasta.errors import CutShort
from serve.ray_start import check_ray

#: How long the errors that end what is open take at most to reach the clients.
_CLOSING_S = 2.0
#: How often to see whether Ray still runs.
_LOOK_S = 0.2


def finish_requests(gateway: Any, timeout_s: float, progress: Callable[[str], None]) -> None:
    """Have the Gateways finish open requests and refuse new ones. A second SIGTERM, or Ctrl-C, ends this at once."""
    progress(f"finishing open requests, for {timeout_s:.0f} s at most")
    done = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):
            gateway.broadcast("drain", timeout_s).results(timeout_s=timeout_s + _CLOSING_S)
        done.set()

    # In another thread: where Ray's processes have had the signal too, and ended, Ray waits for them in C++, which no
    # signal interrupts.
    threading.Thread(target=ask, daemon=True).start()
    with contextlib.suppress(CutShort):
        while not done.wait(_LOOK_S):
            check_ray()
