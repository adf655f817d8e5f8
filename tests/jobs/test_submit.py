"""Submission to a real cluster on this machine, with token authentication on: by our command, and by Ray's own."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jobs.cluster import code_version
from jobs.storage import SENT
from tests.support.cluster import BIN, Cluster, ray_head
from tests.support.service import command
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

SECRET = "a-value-that-nobody-may-print"


def submit(cluster, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Our command, to its end, by a user who has a secret."""
    environment = {"PASTA_TEST_KEY": SECRET, **environment}
    return cluster.run(sys.executable, "-m", "jobs.submit", *arguments, **environment)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with ray_head(tmp_path_factory.mktemp("cluster") / "log") as cluster:
        yield cluster


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
    done = submit(cluster, *annotate(tmp_path, *options))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "annotated data written to" in done.stdout
    assert "job annotate-here: succeeded after" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    (manifest,) = (tmp_path / "runs").rglob("manifest.json")
    assert json.loads(manifest.read_text())["code_version"] == code_version()
    details = cluster.get("/api/jobs/annotate-here")
    # The driver has joined this cluster instead of starting one of its own.
    assert details["driver_info"] is not None
    assert details["entrypoint"].startswith("python -m jobs.annotate --config configs/annotate/atlas.yaml")
    assert details["metadata"]["job"] == "annotate"
    assert details["runtime_env"]["env_vars"]["PASTA_TEST_KEY"] == SECRET


def test_a_job_that_fails_gives_its_exit_code(cluster, tmp_path):
    done = submit(
        cluster,
        *("annotate", "--config", "configs/annotate/alpaca-syntactic.yaml", "--storage", tmp_path),
        *("--set", "data.source.path=/nowhere.jsonl", "--set", "tracking.mode=disabled", "--id", "fails"),
    )
    assert done.returncode == 2
    assert "error: " in done.stdout
    assert "/nowhere.jsonl" in done.stdout
    assert "job fails: failed with exit code 2 after" in done.stderr
    again = submit(cluster, "tail", "fails")
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
    listed = submit(cluster, "list")
    assert listed.returncode == 0
    (row,) = [line.split() for line in listed.stdout.splitlines() if line.startswith("long ")]
    assert row[1] == "RUNNING"
    stopped = submit(cluster, "stop", "long")
    assert stopped.returncode == 0
    assert "job long: stopped after" in stopped.stderr
    assert submit(cluster, "tail", "long").returncode == 143


def test_ray_s_own_command_runs_a_job_in_the_same_environment(cluster, tmp_path):
    program = "import os, pasta, jobs.pipeline; print('in', pasta.__file__, sorted(os.listdir()))"
    job = ("jobs.pipeline", "--config", "configs/pipelines/atlas.yaml", "--set", f"storage={tmp_path}")
    both = f"{shlex.join(['python', '-c', program])} && {shlex.join(['python', '-m', *job, '--dry-run'])}"
    done = cluster.run(
        *(BIN / "ray", "job", "submit", "--runtime-env", "configs/cluster/runtime_env.yaml"),
        *("--", "sh", "-c", both),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("in ")]
    assert "working_dir_files" in line
    assert line.endswith(f"/platform/pasta/__init__.py {sorted(SENT)}")
    assert "round-2-prefer: to run, after round-1-prefer, round-2-score" in done.stdout


def test_a_job_that_is_stopped_has_more_seconds_to_say_how_it_goes_on_than_ray_gives(cluster):
    program = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(6)\n"
        "    sys.exit('the same command goes on')\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    sent = cluster.run(
        *(BIN / "ray", "job", "submit", "--runtime-env", "configs/cluster/runtime_env.yaml", "--no-wait"),
        *("--submission-id", "slow-to-end", "--", "python", "-c", program),
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    logs = (BIN / "ray", "job", "logs", "slow-to-end")
    eventually(lambda: "ready" in cluster.run(*logs).stdout.splitlines(), 120)
    assert submit(cluster, "stop", "slow-to-end").returncode == 0
    assert "the same command goes on" in submit(cluster, "tail", "slow-to-end").stdout.splitlines()


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RAY_AUTH_TOKEN": "wrong"}, "refuses this token"),
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token"),
    ],
)
def test_without_the_right_token_nothing_is_sent_and_one_line_says_so(cluster, tmp_path, environment, says):
    done = submit(cluster, *annotate(tmp_path, "--id", "never"), **environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {cluster.address} {says}")
    assert "never" not in json.dumps(cluster.get("/api/jobs/"))


def test_an_id_that_is_taken_is_one_line(cluster, tmp_path):
    cluster.post("/api/jobs/", {"entrypoint": "true", "submission_id": "twice"})
    done = submit(cluster, *annotate(tmp_path, "--id", "twice"))
    assert done.returncode == 2
    assert "twice" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_job_that_is_not_there_is_one_line(cluster):
    for name in ("tail", "stop"):
        done = submit(cluster, name, "nothing")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "nothing does not exist" in line
