"""The SFT job as a user runs it: two CPU workers, DeepSpeed, interrupted on the way.

A worker that is killed costs every training job the same: test_preference.py, test_rl.py and, with its node,
tests/e2e/test_nodes_jobs.py.
"""

import json
from pathlib import Path

import pytest

from jobs import sft
from pasta.engine import load_model
from pasta.training.save import CARD
from tests.support.jobs import Job, cut_checkpoint_list, interrupted, resumed_steps, tracked
from tests.support.paths import ROOT
from tests.training.runs import sft_dict, write_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_that_was_interrupted_ends_with_a_model_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sft_dict(
        tmp_path, max_steps=60, precision="auto", deepspeed=str(ROOT / "configs/deepspeed/zero2.json")
    )
    path = write_config(tmp_path, config)
    interrupted("sft", path, tmp_path)
    assert not (tmp_path / "model").exists()
    step = cut_checkpoint_list(tmp_path)

    job = Job("sft", path)
    try:
        assert job.end() == 0, job.output
    finally:
        job.close()
    assert resumed_steps(job.output) == [step], "of the copy, since the list is cut"
    assert "step 60/60" in job.output
    loaded = load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    assert loaded.model.num_parameters() > 0
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["figures"]["steps"] == 60
    assert card["config"]["data"]["mode"] == "pasta"
    assert not list(tmp_path.glob(".model*"))
    assert max(row["_step"] for row in tracked(tmp_path) if "train/loss" in row) == 60

    monkeypatch.setattr("sys.argv", ["jobs.sft", "--config", str(path)])
    assert sft.main() == 0
    assert "nothing to do" in capsys.readouterr().out
