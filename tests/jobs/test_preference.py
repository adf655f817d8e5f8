"""The preference job as a user runs it: two CPU workers, DeepSpeed, killed and interrupted on the way."""

import json
import os
import signal
from pathlib import Path

import pytest

from pasta.engine import load_model
from pasta.training.save import CARD
from tests.support.jobs import Job, registered_step
from tests.support.paths import ROOT
from tests.training.pair_runs import preference_dict, write_config
from tests.training.test_tracking import history

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_killed_worker_is_replaced_and_the_model_can_be_served(tmp_path: Path) -> None:
    config = preference_dict(
        tmp_path,
        num_pairs=9,
        max_steps=24,
        precision="bf16",
        deepspeed=str(ROOT / "configs/deepspeed/zero2.json"),
    )
    config["data"]["eval_pairs"] = 1
    config["objective"] = {"reference_log_probs": "precomputed"}
    config["schedule"] = {"log_steps": 1, "save_steps": 3, "eval_steps": 24}
    config["tracking"] = {"mode": "offline"}
    path = write_config(tmp_path, config)
    job = Job("preference", path)
    try:
        job.wait_for(lambda: registered_step(tmp_path) is not None)
        job.workers()[-1].send_signal(signal.SIGKILL)
        assert job.end() == 0, job.output
    finally:
        job.close()
    assert "training resumed at step" in job.output
    assert "step 24/24" in job.output
    load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["figures"]["steps"] == 24
    assert card["config"]["objective"]["loss"] == "bonbon"
    # A killed worker may take its first lines with it. BoNBoN pulls the margin from 0 towards 0.5.
    margins = {row["_step"]: row["train/margin"] for row in _rows(tmp_path) if "train/margin" in row}
    assert max(margins) == 24
    assert margins[24] > 0.2
    assert any("eval/preference_accuracy" in row for row in _rows(tmp_path))

    again = Job("preference", path)
    try:
        assert again.end() == 0
    finally:
        again.close()
    assert "nothing to do" in again.output


def _rows(directory: Path) -> list[dict[str, float]]:
    runs = directory.glob("runs/tiny-*/wandb/offline-run-*/*.wandb")
    return [row for run in runs for row in history(run)]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = preference_dict(tmp_path, max_steps=3000)
    config["schedule"] = {"log_steps": 1, "save_steps": 3}
    path = write_config(tmp_path, config)
    job = Job("preference", path)
    try:
        job.wait_for(lambda: registered_step(tmp_path) is not None)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.end() == 130, job.output
        assert "the same command goes on from the last checkpoint" in job.output
    finally:
        job.close()
    assert not (tmp_path / "model").exists()
    step = registered_step(tmp_path)
    again = Job("preference", path)
    try:
        again.wait_for(lambda: f"training resumed at step {step};" in again.output)
    finally:
        again.close()
