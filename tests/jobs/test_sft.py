"""The SFT job as a user runs it: two CPU workers, DeepSpeed, killed and interrupted on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pasta.engine import load_model
from pasta.training.save import CARD
from tests.training.runs import ROOT, sft_dict, write_config
from tests.training.test_tracking import history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WAIT_S = 300.0


class Job:
    """``python -m jobs.sft`` in a session of its own, its output gathered as it comes."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobs.sft", "--config", str(config), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
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


def _registered_step(directory: Path) -> int | None:
    """Step of the last checkpoint that Ray Train's controller knows of; a copied directory alone is not one yet."""
    for path in directory.glob("runs/tiny-*/ray/checkpoint_manager_snapshot.json"):
        try:
            latest = json.loads(path.read_text())["latest_checkpoint_result"]
        except json.JSONDecodeError:  # being written
            return None
        return int(latest["metrics"]["step"]) if latest else None
    return None


def test_two_deepspeed_workers_train_a_model_that_loads_and_a_killed_worker_is_replaced(
    tmp_path: Path,
) -> None:
    config = sft_dict(
        tmp_path, max_steps=30, precision="bf16", deepspeed=str(ROOT / "configs/deepspeed/zero2.json")
    )
    path = write_config(tmp_path, config)
    job = Job(path)
    try:
        job.wait_for(lambda: _registered_step(tmp_path) is not None)
        victim = job.workers()[-1]
        victim.send_signal(signal.SIGKILL)
        assert job.end() == 0, job.output
    finally:
        job.close()
    resumed = [line for line in job.lines if "training resumed at step" in line]
    assert len(resumed) == 1, job.output
    assert "step 30/30" in job.output
    loaded = load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    assert loaded.model.num_parameters() > 0
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["figures"]["steps"] == 30
    assert card["config"]["data"]["mode"] == "pasta"
    assert not list(tmp_path.glob(".model*"))
    steps = [
        row["_step"]
        for run in tmp_path.glob("runs/tiny-*/wandb/offline-run-*/*.wandb")
        for row in history(run)
        if "train/loss" in row
    ]
    assert max(steps) == 30

    again = Job(path)
    try:
        assert again.end() == 0
    finally:
        again.close()
    assert "nothing to do" in again.output


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = sft_dict(tmp_path, max_steps=3000)
    job = Job(write_config(tmp_path, config))
    try:
        job.wait_for(lambda: _registered_step(tmp_path) is not None)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.end() != 0
    finally:
        job.close()
    assert not (tmp_path / "model").exists()
    step = _registered_step(tmp_path)
    again = Job(write_config(tmp_path, config))
    try:
        again.wait_for(lambda: "training resumed at step" in again.output)
        line = next(line for line in again.lines if "training resumed at step" in line)
        assert int(line.split("resumed at step ")[1].split(";")[0]) == step
    finally:
        again.close()
