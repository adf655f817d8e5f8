"""Training jobs as a user runs them: started as processes, watched, killed."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from jobs.checkpoint_list import FILE, KEPT
from tests.support.paths import ROOT
from tests.support.wandb_runs import history, wait_until_written

WAIT_S = 300.0


class Job:
    """``python -m jobs.MODULE`` in a session of its own, its output gathered as it comes.

    ``environment`` is what it gets beside the tests' own: the address of a cluster.
    """

    def __init__(
        self, module: str, config: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"jobs.{module}", "--config", str(config), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(30)
        return code

    def workers(self) -> list[psutil.Process]:
        """Ray Train's worker processes. Ray puts them into sessions of their own: they are found by parentage."""
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in descendants if "RayTrainWorker" in " ".join(process.cmdline())]

    def close(self) -> None:
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for process in family:
                if process.is_running():
                    process.kill()
            self.process.wait(30)


def registered_step(directory: Path, run: str = "runs/tiny-*") -> int | None:
    """Step of the last checkpoint that Ray Train's controller knows of; a copied directory alone is not one yet."""
    for path in directory.glob(f"{run}/ray/{FILE}"):
        for known in (path, path.with_name(FILE + KEPT)):
            with suppress(json.JSONDecodeError, FileNotFoundError):  # being written, or cut
                latest = json.loads(known.read_text())["latest_checkpoint_result"]
                return int(latest["metrics"]["step"]) if latest else None
    return None


def cut_checkpoint_list(directory: Path) -> int | None:
    """Leave half of Ray's list of checkpoints, as if its controller had been killed while writing it. Returns the step
    of the last one in the copy, which may be of the list before."""
    (path,) = directory.glob(f"runs/tiny-*/ray/{FILE}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return registered_step(directory)


def interrupted(module: str, config: Path, directory: Path) -> int:
    """Press Ctrl-C once there is a checkpoint, and a copy of the list of them: the job says how to go on. Returns the
    step of its last checkpoint."""
    job = Job(module, config)
    try:
        job.wait_for(lambda: any(directory.glob(f"runs/tiny-*/ray/{FILE}{KEPT}")))
        os.kill(job.process.pid, signal.SIGINT)
        assert job.end() == 130, job.output
        assert job.output.count("the same command goes on from the last checkpoint") == 1
    finally:
        job.close()
    step = registered_step(directory)
    assert step is not None
    return step


def ended_without_a_worker(module: str, config: Path, directory: Path) -> str:
    """Go on, kill a worker at the next checkpoint, and wait for the end. Returns what the job printed."""
    before = registered_step(directory)
    job = Job(module, config)
    try:
        job.wait_for(lambda: registered_step(directory) not in (None, before))
        job.workers()[-1].kill()
        assert job.end() == 0, job.output
    finally:
        job.close()
    return job.output


def resumed_steps(output: str) -> list[int]:
    """The steps that a job says it went on from."""
    return [int(step) for step in re.findall(r"training resumed at step (\d+);", output)]


def tracked(directory: Path) -> list[dict[str, Any]]:
    """The rows that a tiny run, which has ended, logged to W&B."""
    runs = sorted(directory.glob("runs/tiny-*/wandb/offline-run-*/*.wandb"))
    wait_until_written(runs[-1])
    return [row for run in runs for row in history(run)]
