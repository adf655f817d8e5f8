"""The SFT job as a user runs it: two CPU workers, DeepSpeed, killed and interrupted on the way."""

import json
import os
import signal
from pathlib import Path

import pytest

from pasta.engine import load_model
from pasta.training.save import CARD
from tests.support.jobs import Job, registered_step
from tests.support.paths import ROOT
from tests.training.runs import sft_dict, write_config
from tests.training.test_tracking import history

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def test_two_deepspeed_workers_train_a_model_that_loads_and_a_killed_worker_is_replaced(
    tmp_path: Path,
) -> None:
    config = sft_dict(
        tmp_path, max_steps=30, precision="bf16", deepspeed=str(ROOT / "configs/deepspeed/zero2.json")
    )
    path = write_config(tmp_path, config)
    job = Job("sft", path)
    try:
        job.wait_for(lambda: registered_step(tmp_path) is not None)
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

    again = Job("sft", path)
    try:
        assert again.end() == 0
    finally:
        again.close()
    assert "nothing to do" in again.output


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = sft_dict(tmp_path, max_steps=3000)
    job = Job("sft", write_config(tmp_path, config))
    try:
        job.wait_for(lambda: registered_step(tmp_path) is not None)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.end() == 130, job.output
        assert "the same command goes on from the last checkpoint" in job.output
    finally:
        job.close()
    assert not (tmp_path / "model").exists()
    step = registered_step(tmp_path)
    again = Job("sft", write_config(tmp_path, config))
    try:
        again.wait_for(lambda: "training resumed at step" in again.output)
        line = next(line for line in again.lines if "training resumed at step" in line)
        assert int(line.split("resumed at step ")[1].split(";")[0]) == step
    finally:
        again.close()
