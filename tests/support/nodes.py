"""A Ray cluster of several nodes on this machine: raylets of Ray's cluster_utils, each with processes of its own.

    with Nodes(num_cpus=1) as nodes:
        other = nodes.add(num_cpus=1)
        nodes.kill(other)

They run in a process of their own (this file, as a program): Ray keeps one address and one token a process, and with
that process the whole cluster ends, whatever happens to the tests.
"""

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from serve.ray_start import few_processes, free_port, python_path
from tests.support.paths import ROOT
from tests.support.waiting import PATIENT_PROXY

OBJECT_STORE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True)
class Node:
    """One node, by the process that everything on it is a child of."""

    raylet: int

    def processes(self) -> list[psutil.Process]:
        """The raylet, its workers and agents."""
        raylet = psutil.Process(self.raylet)
        return [raylet, *raylet.children(recursive=True)]

    def workers(self, name: str) -> list[psutil.Process]:
        """Ray's worker processes whose title has ``name`` in it."""
        return [process for process in self.processes() if name in _title(process)]

    def holds(self, pid: int) -> bool:
        """Whether this process runs here."""
        return pid in {process.pid for process in self.processes()}


class Nodes:
    """A head node of ``options`` (cluster_utils' own: num_cpus, resources, …), and whatever is added to it."""

    def __init__(self, *, dashboard: bool = False, **options: Any) -> None:
        # Short: Ray makes sockets in it, whose paths have no more than 107 characters.
        self._directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self._addresses = (f"127.1.0.{number}" for number in itertools.count(1))
        token = secrets.token_hex(16)
        self._dashboard = free_port() if dashboard else None
        environment = {
            "PYTHONPATH": python_path(),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            # Else every Ray that is started on this machine without an address would join this cluster.
            "RAY_TMPDIR": self._directory,
            "RAY_worker_niceness": "0",
            **PATIENT_PROXY,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nodes"],
            cwd=ROOT,
            env={**{key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.head, self.address = self._add(
                include_dashboard=dashboard,
                **({"dashboard_port": self._dashboard} if dashboard else {}),
                **options,
            )
        except BaseException:
            self.close()
            raise
        #: What a process needs to join the cluster.
        self.environment = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_TMPDIR": self._directory,
        }

    @property
    def dashboard(self) -> str:
        """The address that jobs and services are deployed to."""
        assert self._dashboard is not None
        return f"http://127.0.0.1:{self._dashboard}"

    def add(self, **options: Any) -> Node:
        """One node more; it has joined when this returns."""
        return self._add(**options)[0]

    def kill(self, node: Node) -> None:
        """End a node as a power cut does: all of its processes at once, and nobody is told."""
        dying = node.processes()
        self._ask("kill", raylet=node.raylet)
        for process in dying:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze(self, node: Node) -> None:
        """Let a node fall silent without closing a connection, as one does that has lost its network."""
        for process in node.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A command to its end, in the repository's root, with what it needs to reach the cluster."""
        return subprocess.run(
            [str(argument) for argument in arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def close(self) -> None:
        """End all nodes."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=30)
        self._process.wait(30)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, **options: Any) -> tuple[Node, str]:
        ports = ("dashboard_agent_listen_port", "metrics_export_port", "runtime_env_agent_port")
        answer = self._ask(
            "add",
            # Loopback addresses all, and not the one that Ray takes for another name of this machine's public one.
            node_ip_address=next(self._addresses),
            object_store_memory=OBJECT_STORE_BYTES,
            **{port: free_port() for port in ports},
            **options,
        )
        return Node(answer["raylet"]), answer["address"]

    def _ask(self, what: str, **options: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, options]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the cluster's process has ended with {self._process.wait(30)}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _orders() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in sys.stdin:
        what, options = json.loads(line)
        yield what, options


def _added(cluster: Any, options: dict[str, Any]) -> Any:
    """A node more; once more if Ray was too slow, which on a busy machine it may be."""
    before = {process.pid for process in psutil.Process().children()}
    for last_try in (False, True):
        try:
            node = cluster.add_node(wait=False, **options)
            cluster._wait_for_node(node, 120)
            return node
        except Exception as error:
            if last_try or "timed out during startup" not in str(error):
                raise
            for process in psutil.Process().children():
                if process.pid not in before:
                    process.kill()
    raise AssertionError


def main() -> None:
    """Do what comes on stdin, a line of JSON each, and answer each with one."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever Ray may have to say
    # Ctrl-C is for the tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ray.cluster_utils import Cluster

    cluster, nodes = Cluster(), {}
    for what, options in _orders():
        answer: dict[str, Any] = {}
        if what == "add":
            with few_processes():
                node = _added(cluster, options)
            raylet = node.all_processes["raylet"][0].process.pid
            nodes[raylet] = node
            answer = {"raylet": raylet, "address": cluster.address}
        else:
            cluster.remove_node(nodes.pop(options["raylet"]), allow_graceful=False)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
