"""Starts a local Ray, for the service and for the jobs. Importing this module does not import Ray."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pasta.signals import deferred_interrupt

#: The repository's root.
ROOT = Path(__file__).resolve().parent.parent


def start_ray(on_retry: Callable[[], None], **options: Any) -> Any:
    """Call ``ray.init(**options)`` and return Ray's context; if Ray timed out, call ``on_retry`` and try once more.

    Ctrl-C meanwhile is raised once ``ray.init`` has returned. The caller shuts Ray down, also when this raises.
    """
    with deferred_interrupt():
        import ray

    for last_try in (False, True):
        try:
            with deferred_interrupt():
                return ray.init(**options)
        except Exception as error:
            # Ray gives its processes 30 seconds, which a busy machine may need twice.
            if last_try or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
            on_retry()
    raise AssertionError("the last try returns or raises")


def python_path() -> str:
    """PYTHONPATH for Ray's workers: the project's two source roots, then this process's own PYTHONPATH."""
    return os.pathsep.join([str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
