"""A Ray cluster as an operator starts it on this machine: ``ray start``, with token authentication on."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from serve.ray_start import free_port
from tests.support.paths import ROOT
from tests.support.service import START_S, Command, command
from tests.support.waiting import PATIENT_PROXY, eventually

BIN = Path(sys.executable).parent
#: Without it Ray's command would write over the log in colours.
PLAIN = {"RAY_LOG_TO_STDERR": "0", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Cluster:
    """A head node with a token, and how commands reach it."""

    address: str
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """What a user of the cluster has set."""
        return {
            **os.environ,
            **PLAIN,
            "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
            "RAY_API_SERVER_ADDRESS": self.address,  # for ray job
            "RAY_DASHBOARD_ADDRESS": self.address,  # for serve
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            [str(argument) for argument in arguments],
            cwd=ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def get(self, path: str) -> dict:
        """JSON of the dashboard's API."""
        return self._ask("GET", path)

    def post(self, path: str, body: dict) -> dict:
        """What the dashboard's API says to JSON."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **options: Any) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, f"{self.address}{path}", headers=headers, timeout=60, **options)
        return answer.raise_for_status().json()


@contextlib.contextmanager
def ray_head(log: Path, num_cpus: int = 2, **environment: str) -> Iterator[Cluster]:
    """A cluster of one node, for the time of the block."""
    token, dashboard, agent = secrets.token_hex(16), free_port(), free_port()
    # Short: Ray makes sockets in it, whose paths have no more than 107 characters.
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    options = [
        *("--head", "--block", "--disable-usage-stats", "--include-dashboard=true", f"--num-cpus={num_cpus}"),
        "--no-monitor",  # which asks a cloud for machines
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={directory}"),
        *(f"--object-store-memory={100 * 1024 * 1024}", f"--port={free_port()}"),
        *(f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        *(f"--dashboard-agent-grpc-port={free_port()}", f"--metrics-export-port={free_port()}"),
        *(f"--runtime-env-agent-port={free_port()}", f"--ray-client-server-port={free_port()}"),
    ]
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        **PATIENT_PROXY,
        **environment,
    }
    with command(BIN / "ray", "start", *options, log=log, **environment) as head:
        _wait_until_healthy(f"http://127.0.0.1:{dashboard}/api/gcs_healthz", head)
        _wait_until_healthy(f"http://127.0.0.1:{agent}/api/local_raylet_healthz", head)
        try:
            yield Cluster(f"http://127.0.0.1:{dashboard}", token)
        finally:
            # `ray start --block` takes half a minute to end by itself.
            for process in head.descendants():
                with contextlib.suppress(psutil.Error):
                    process.kill()
    shutil.rmtree(directory, ignore_errors=True)


def _wait_until_healthy(url: str, head: Command) -> None:
    def healthy() -> bool:
        assert head.process.poll() is None, head.output
        return httpx.get(url, timeout=10).is_success

    assert eventually(healthy, START_S), f"{url} does not answer:\n{head.output}"
