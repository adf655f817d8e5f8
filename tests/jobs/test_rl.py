"""Reinforcement learning as a user runs it: two workers train, two actors sample; both lose one, and Ctrl-C."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobs import rl
from pasta.engine import load_model
from pasta.training.save import CARD
from tests.rl.runs import rl_dict
from tests.support.jobs import Job, interrupted, registered_step, resumed_steps, tracked
from tests.support.paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 8
MODELS = ROOT / "platform/pasta/data/atlas/models"


def _config(directory: Path) -> Path:
    data = rl_dict(directory)
    data["model"]["init_from"], data["twin"] = str(MODELS / "pasta"), str(MODELS / "twin")
    data["limits"]["max_tokens"], data["engine"]["slot_tokens"] = 300, 600
    data["rollout"]["workers"]["num_workers"] = 2
    data["optimisation"]["max_steps"] = STEPS
    data["schedule"]["save_steps"] = 2
    data["tracking"]["mode"] = "offline"
    path = directory / "rl.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def _samplers(job: Job) -> list[psutil.Process]:
    """The rollout actors' processes, which Ray names after what they do."""
    family = psutil.Process(job.process.pid).children(recursive=True)
    found = psutil.process_iter(["pid", "cmdline"])
    named = {process.pid for process in found if "_Sampler" in " ".join(process.info["cmdline"] or ())}
    return [process for process in family if process.pid in named]


def _without_an_actor_and_a_worker(config: Path, directory: Path) -> str:
    before = registered_step(directory)
    job = Job("rl", config)
    try:
        job.wait_for(lambda: len(_samplers(job)) == 2)
        _samplers(job)[0].kill()
        job.wait_for(lambda: "is sampled again" in job.output)
        job.wait_for(lambda: registered_step(directory) not in (None, before))
        job.workers()[-1].kill()
        assert job.end() == 0, job.output
    finally:
        job.close()
    return job.output


def test_a_run_that_lost_an_actor_and_a_worker_and_was_interrupted_learns_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tmp_path)
    step = interrupted("rl", config, tmp_path)
    assert not (tmp_path / "model").exists()
    output = _without_an_actor_and_a_worker(config, tmp_path)
    first, second = resumed_steps(output)
    assert first == step
    assert second > step
    assert "prompts found" in output

    load_model(str(tmp_path / "model"), dtype="float32", device="cpu")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["figures"]["steps"] == STEPS
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in tracked(tmp_path):
        if "rl/reward" in row:
            rows[row["_step"]].append(row)
    assert max(rows) == STEPS
    # Steps that were done again after a checkpoint gave the same, and no token of theirs counts twice.
    repeated = [each for each in rows.values() if len(each) > 1]
    for each in repeated:
        for key in ("rl/reward", "rl/quality", "rl/speedup", "train/loss", "train/tokens"):
            assert len({row[key] for row in each}) == 1, (key, each)
    assert all(row["rl/staleness"] == 0 for each in rows.values() for row in each)
    tokens = [rows[number][0]["train/tokens"] for number in sorted(rows)]
    assert tokens == sorted(tokens)
    assert card["figures"]["train_tokens"] == tokens[-1]

    monkeypatch.setattr("sys.argv", ["jobs.rl", "--config", str(config)])
    assert rl.main() == 0
    assert "nothing to do" in capsys.readouterr().out
