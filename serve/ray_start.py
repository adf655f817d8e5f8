"""Starts a local Ray, for the service and for the jobs. Importing this module does not import Ray.

It uses a private API, written against ray 2.60.0; tests/serve/test_ray_start.py fails when it is gone: the methods of
``ray._private.node.Node`` that start the dashboard's process and the autoscaler's, and the node of this process, which
knows its dead ones.
"""

import errno
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from pasta.errors import CutShort, UserError
from pasta.signals import Terminated, deferred_interrupt, handling

#: The repository's root.
ROOT = Path(__file__).resolve().parent.parent

#: For workers: one that reserves no GPU sees none. Ray would show it all GPUs of its machine.
GPUS_AS_RESERVED = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}

#: Above the ports of Ray's workers (10002 to 19999), below those that systems hand out (Linux: 32768 to 60999) and
#: those of Ray Serve's direct ingress (30000 to 31000).
FREE_PORTS = range(20000, 30000)
_taken_ports: set[int] = set()
#: Ray's raylet puts the path of Python into a command of bash as it is, and waits for ever for the workers.
_SPLIT_BY_BASH = re.compile(r"[\s\"'\\$&;|<>()`]")
#: Below it lies /ray/session_<date and time>_<pid, up to seven digits>/sockets/plasma_store, and Linux allows a socket
#: 107 bytes.
_LONGEST_TMPDIR = 39
#: What Ray writes below TMPDIR as it starts is a fifth of this.
_SESSION_BYTES = 1_000_000
#: Those of Ray's processes that all others need, by Ray's names.
_NEEDED = {"gcs_server", "raylet"}
#: Where the processes of a local Ray meet, and how long a machine may take to reach itself.
_LOOPBACK, _LOOPBACK_S = "127.0.0.1", 10.0


def start_ray(on_retry: Callable[[], None], **options: Any) -> Any:
    """Call ``ray.init(**options)`` and return Ray's context; if Ray timed out, call ``on_retry`` and try once more.

    Ctrl-C meanwhile is raised once ``ray.init`` has returned. The caller shuts Ray down, also when this raises. Raises
    ``UserError`` if Ray timed out twice or found too little memory, or its processes could not start here or reach each
    other, and ``Terminated`` for a SIGTERM meanwhile.
    """
    if options.get("address") in (None, "local"):
        _check_here()
    with deferred_interrupt():
        import ray

    for last_try in (False, True):
        try:
            with deferred_interrupt(), few_processes():
                return ray.init(**options)
        except SystemExit:  # of Ray's own handler, with exit code 15
            raise Terminated from None
        except Exception as error:
            if "AF_UNIX path length" in str(error):
                raise UserError(
                    f"TMPDIR: {_tmpdir()}: too long a path for Ray's "
                    f"sockets; expected at most {_LONGEST_TMPDIR} bytes: export RAY_TMPDIR=/tmp, or another short one"
                ) from None
            if "available for tasks and actors" in str(error):
                raise UserError(
                    "Ray did not start: too little of this machine's memory (or the container's) is free; expected "
                    "more memory, or fewer other processes"
                ) from None
            if isinstance(error, OSError) and _is_token_cut():
                raise UserError(
                    f"HOME: {_token()}: cannot be written ({error.strerror}); expected room for Ray's token, or "
                    "another home: export HOME=…"
                ) from None
            # Ray gives its processes 30 seconds, which a busy machine may need twice.
            if "timed out during startup" not in str(error):
                raise
            if last_try:
                raise UserError(
                    "Ray did not start in two times 30 s: this machine is too busy, or has too little memory or too "
                    "few processes (ulimit -u)"
                ) from error
            ray.shutdown()
            on_retry()
    raise AssertionError("the last try returns or raises")


def _check_here() -> None:
    """Raise ``UserError`` if Ray would wait for ever on this machine: for workers that do not start by the path of this
    Python, or for its own processes where none reaches another or can write."""
    if wrong := _SPLIT_BY_BASH.search(sys.executable):
        raise UserError(
            f"{sys.executable}: Ray cannot start workers by a path with {wrong[0]!r} in it; move the project to a "
            "path without it, and make its .venv anew"
        )
    with suppress(OSError):  # Ray makes the directory, or is refused it
        if shutil.disk_usage(_tmpdir()).free < _SESSION_BYTES:
            raise UserError(
                f"TMPDIR: {_tmpdir()}: no room is left on its disk, where Ray's processes meet; expected 1 MB: "
                "make room, or export RAY_TMPDIR=… (a short path)"
            )
    try:
        with socket.create_server((_LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_LOOPBACK_S).close()
    except OSError as error:
        raise UserError(
            f"{_LOOPBACK}: Ray's processes cannot reach each other there ({error.strerror or error}); expected the "
            "interface lo to be up: ip link set lo up"
        ) from None


def _token() -> Path:
    """Where Ray keeps the token of a local Ray."""
    return Path.home() / ".ray" / "auth_token"


def _is_token_cut() -> bool:
    """Whether Ray has found no room for its token: it leaves an empty file, and its error names none."""
    return _token().is_file() and not _token().stat().st_size


def _tmpdir() -> str:
    return os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()


def check_ray() -> None:
    """Raise ``CutShort`` if a process of the Ray that was started here has ended, without which nothing goes on.

    Ray itself neither starts it again nor says so: jobs would wait for ever, and a service keep the replicas that are
    left.
    """
    from ray._private import worker

    ended = worker._global_node.dead_processes() if worker._global_node else []
    for name in sorted(_NEEDED.intersection(name for name, _ in ended)):
        raise CutShort(
            f"Ray's process {name} has ended, and nothing goes on without it (the system kills processes for which it "
            "has no memory)"
        )


def stop_ray() -> None:
    """Stop a Ray that was started here with all of its processes, though the user sends further signals meanwhile.

    There is nothing left to wait for, and who is in a hurry would leave processes behind.
    """
    import ray

    with ThreadPoolExecutor(1, "ray.shutdown") as pool, _ignored(signal.SIGINT), _ignored(signal.SIGTERM):
        stopping = pool.submit(ray.shutdown)
        while not stopping.done():
            # Ray's core gives SIGTERM its default action as it ends: that would end this process first.
            with _ignored(signal.SIGTERM):
                wait([stopping], timeout=0.005)
        stopping.result()


def _ignored(number: signal.Signals) -> AbstractContextManager[None]:
    return handling(number, signal.SIG_IGN)


def metrics_url(node: Mapping[str, Any]) -> str:
    """Where a node of ``ray.nodes()`` exports its metrics. Its address may be one of IPv6."""
    address = node["NodeManagerAddress"]
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{node['MetricsExportPort']}/metrics"


@contextmanager
def few_processes() -> Iterator[None]:
    """Start Ray in this block without two processes that one machine has no use for, and ``ray.init`` waits for.

    The one is the dashboard's, which Ray also starts where there is no dashboard: to report usage, which is off. The
    other asks a cloud for machines. Joining a cluster starts neither, so that nothing changes there.
    """
    from ray._private.node import Node

    started = Node.start_api_server, Node.start_monitor

    def no_dashboard(node: Any, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        if include_dashboard is False:
            node._webui_url = ""
        else:
            started[0](node, include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)

    Node.start_api_server, Node.start_monitor = no_dashboard, lambda node: None
    try:
        yield
    finally:
        Node.start_api_server, Node.start_monitor = started


@contextmanager
def environment_with(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time of the block."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in values if name in before})


def python_path() -> str:
    """PYTHONPATH for Ray's workers: the project's two source roots, then this process's own PYTHONPATH."""
    return os.pathsep.join([str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens now, of those that the system does not hand out by itself. No call in this
    process returns it again: Ray is started with several.

    Ray's own processes take ports from the system while they start, so a port of the system's choice may be gone before
    it is used.
    """
    first = secrets.randbelow(len(FREE_PORTS))
    for port in (*FREE_PORTS[first:], *FREE_PORTS[:first]):
        if port in _taken_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            _taken_ports.add(port)
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {FREE_PORTS.start} to {FREE_PORTS.stop - 1} are in use")
