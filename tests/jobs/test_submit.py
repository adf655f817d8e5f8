"""Submission to a real cluster on this machine, with token authentication on: by our command, and by Ray's own."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from jobs.cluster import ROOT, code_version
from jobs.storage import SENT
from serve.launch import free_port
from tests.support.service import START_S, Command, command

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
SECRET = "a-value-that-nobody-may-print"
#: Without it Ray's command would write over the log in colours.
PLAIN = {"RAY_LOG_TO_STDERR": "0", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Cluster:
    """A head node with a token, and how commands reach it."""

    address: str
    token: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **PLAIN,
            "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
            "RAY_API_SERVER_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "PASTA_TEST_KEY": SECRET,
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

    def submit(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "jobs.submit", *arguments, **environment)

    def details(self, job: str) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        return (
            httpx.get(f"{self.address}/api/jobs/{job}", headers=headers, timeout=60).raise_for_status().json()
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    token, dashboard, agent = secrets.token_hex(16), free_port(), free_port()
    # Short: Ray makes sockets in it, whose paths have no more than 107 characters.
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    options = [
        *("--head", "--block", "--disable-usage-stats", "--include-dashboard=true", "--num-cpus=2"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={directory}"),
        *(f"--object-store-memory={100 * 1024 * 1024}", f"--port={free_port()}"),
        *(f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        *(f"--dashboard-agent-grpc-port={free_port()}", f"--metrics-export-port={free_port()}"),
        *(f"--runtime-env-agent-port={free_port()}", f"--ray-client-server-port={free_port()}"),
    ]
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    log = tmp_path_factory.mktemp("cluster") / "log"
    with command(BIN / "ray", "start", *options, log=log, **authentication) as head:
        _wait_until_healthy(f"http://127.0.0.1:{dashboard}/api/gcs_healthz", head)
        _wait_until_healthy(f"http://127.0.0.1:{agent}/api/local_raylet_healthz", head)
        yield Cluster(f"http://127.0.0.1:{dashboard}", token)
    shutil.rmtree(directory, ignore_errors=True)


def _wait_until_healthy(url: str, head: Command) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert head.process.poll() is None, head.output
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=10).is_success:
                return
        time.sleep(0.5)
    raise AssertionError(f"{url} does not answer:\n{head.output}")


def annotate(storage: Path, *options: object) -> Sequence[object]:
    """A small job that computes on the cluster's workers."""
    return (
        *("annotate", "--config", "configs/annotate/atlas.yaml", "--storage", storage),
        *(
            "--set",
            "data.source.records=12",
            "--set",
            "workers.num_workers=1",
            "--set",
            "tracking.mode=disabled",
        ),
        *options,
    )


def test_a_job_runs_on_the_cluster_and_leaves_its_output_on_shared_storage(cluster, tmp_path):
    options = ("--env", "PASTA_TEST_KEY", "--id", "annotate-here", "--entrypoint-num-cpus", "0.5")
    done = cluster.submit(*annotate(tmp_path, *options))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "annotated data written to" in done.stdout
    assert "job annotate-here: succeeded after" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    (manifest,) = (tmp_path / "runs").rglob("manifest.json")
    assert json.loads(manifest.read_text())["code_version"] == code_version()
    details = cluster.details("annotate-here")
    # The driver has joined this cluster instead of starting one of its own.
    assert details["driver_info"] is not None
    assert details["entrypoint"].startswith("python -m jobs.annotate --config configs/annotate/atlas.yaml")
    assert details["metadata"]["job"] == "annotate"
    assert details["runtime_env"]["env_vars"]["PASTA_TEST_KEY"] == SECRET


def test_a_job_that_fails_gives_its_exit_code(cluster, tmp_path):
    done = cluster.submit(
        *("annotate", "--config", "configs/annotate/alpaca-syntactic.yaml", "--storage", tmp_path),
        *("--set", "data.source.path=/nowhere.jsonl", "--set", "tracking.mode=disabled", "--id", "fails"),
    )
    assert done.returncode == 2
    assert "error: " in done.stdout
    assert "/nowhere.jsonl" in done.stdout
    assert "job fails: failed with exit code 2 after" in done.stderr
    again = cluster.submit("tail", "fails")
    assert again.returncode == 2
    assert "/nowhere.jsonl" in again.stdout


def test_ctrl_c_detaches_and_the_job_can_be_listed_stopped_and_tailed(cluster, tmp_path):
    arguments = annotate(tmp_path, "--set", "data.source.records=200000", "--id", "long")
    environment = {key: value for key, value in cluster.environment.items() if os.environ.get(key) != value}
    with command("-m", "jobs.submit", *arguments, log=tmp_path / "log", **environment) as submitting:
        submitting.wait_for("^Running entrypoint for job long")
        assert submitting.end(signal.SIGINT) == 130
        last = submitting.output.splitlines()[-1]
    assert last.startswith("detached: job long goes on; python -m jobs.submit tail long --address")
    listed = cluster.submit("list")
    assert listed.returncode == 0
    (row,) = [line.split() for line in listed.stdout.splitlines() if line.startswith("long ")]
    assert row[1] == "RUNNING"
    stopped = cluster.submit("stop", "long")
    assert stopped.returncode == 0
    assert "job long: stopped after" in stopped.stderr
    assert cluster.submit("tail", "long").returncode == 143


def test_ray_s_own_command_takes_the_same_environment(cluster, tmp_path):
    program = "import os, pasta, jobs.pipeline; print('in', pasta.__file__, sorted(os.listdir()))"
    done = cluster.run(
        *(BIN / "ray", "job", "submit", "--runtime-env", "configs/cluster/runtime_env.yaml"),
        *("--", "python", "-c", program),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("in ")]
    assert "working_dir_files" in line
    assert line.endswith(f"/platform/pasta/__init__.py {sorted(SENT)}")


def test_ray_s_own_command_runs_a_job(cluster, tmp_path):
    done = cluster.run(
        *(BIN / "ray", "job", "submit", "--runtime-env", "configs/cluster/runtime_env.yaml", "--"),
        *("python", "-m", "jobs.pipeline", "--config", "configs/pipelines/atlas.yaml"),
        *("--set", f"storage={tmp_path}", "--dry-run"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round-2-prefer: to run, after round-1-prefer, round-2-score" in done.stdout


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RAY_AUTH_TOKEN": "wrong"}, "refuses this token"),
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token"),
    ],
)
def test_without_the_right_token_nothing_is_sent_and_one_line_says_so(cluster, tmp_path, environment, says):
    done = cluster.submit(*annotate(tmp_path, "--id", "never"), **environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {cluster.address} {says}")
    assert "never" not in cluster.submit("list").stdout


def test_an_id_that_is_taken_is_one_line(cluster, tmp_path):
    first = cluster.submit(*annotate(tmp_path, "--id", "twice", "--detach"))
    assert first.returncode == 0
    assert cluster.submit("stop", "twice").returncode == 0
    done = cluster.submit(*annotate(tmp_path, "--id", "twice"))
    assert done.returncode == 2
    assert "twice" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_job_that_is_not_there_is_one_line(cluster):
    for name in ("tail", "stop"):
        done = cluster.submit(name, "nothing")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "nothing does not exist" in line
