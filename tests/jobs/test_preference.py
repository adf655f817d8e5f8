"""The preference job as a user runs it: two CPU workers, DeepSpeed, one of them killed on the way.

What Ctrl-C does is the same for all training jobs: test_sft.py.
"""

import json
from pathlib import Path

import pytest

from jobs import preference
from pasta.engine import load_model
from pasta.training.save import CARD
from tests.support.jobs import ended_without_a_worker, resumed_steps, tracked
from tests.support.paths import ROOT
from tests.training.pair_runs import preference_dict, write_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_that_lost_a_worker_ends_with_a_model_that_can_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(
        tmp_path,
        num_pairs=9,
        max_steps=24,
        precision="auto",
        deepspeed=str(ROOT / "configs/deepspeed/zero2.json"),
    )
    config["data"]["eval_pairs"] = 1
    config["objective"] = {"reference_log_probs": "precomputed"}
    config["schedule"] = {"log_steps": 1, "save_steps": 3, "eval_steps": 24}
    config["tracking"] = {"mode": "offline"}
    path = write_config(tmp_path, config)
    output = ended_without_a_worker("preference", path, tmp_path)
    (step,) = resumed_steps(output)
    assert 0 < step < 24
    assert "step 24/24" in output
    load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["figures"]["steps"] == 24
    assert card["config"]["objective"]["loss"] == "bonbon"
    # One pair is held out, so that the share of pairs in the right order is that pair's order.
    assert card["figures"]["eval_accuracy"] == float(card["figures"]["eval_delta"] > 0.0)
    assert "eval_chosen_gain" in card["figures"]
    # A killed worker may take its first lines with it. BoNBoN pulls the margin from 0 towards 0.5.
    margins = {row["_step"]: row["train/margin"] for row in tracked(tmp_path) if "train/margin" in row}
    assert max(margins) == 24
    assert margins[24] > 0.2
    assert any("eval/preference_accuracy" in row for row in tracked(tmp_path))

    monkeypatch.setattr("sys.argv", ["jobs.preference", "--config", str(path)])
    assert preference.main() == 0
    assert "nothing to do" in capsys.readouterr().out
