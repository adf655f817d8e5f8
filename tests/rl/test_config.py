"""Mistakes in a configuration are told in one line, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from pasta.config import ConfigError, load_config
from pasta.rl.config import RlConfig
from tests.rl.runs import rl_config
from tests.support.paths import ROOT

VALID: dict[str, Any] = {
    "name": "tiny",
    "output_dir": "runs/out",
    "model": {"init_from": "runs/start"},
    "judge": {"kind": "grader"},
    "reward": {"quality_weight": 4},
    "optimisation": {"learning_rate": 1e-5, "rows": 4, "max_steps": 4},
}


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("reward", "quality_weight", -1, "quality_weight -1"),
        ("reward", "min_quality", 1.5, "min_quality 1.5"),
        ("rollout", "staleness", 2, "rollout: staleness 2: expected 0 or 1"),
        ("rollout", "staleness", True, "rollout.staleness: expected a valid integer, got True"),
        ("rollout", "prompts", 1, "expected a multiple of"),
        ("objective", "epsilon", 1.0, "epsilon 1.0"),
        ("objective", "updates", 3, "objective.updates"),
        ("objective", "los", "grpo", "los"),
        ("sampling", "top_p", 0.9, "top_p 0.9"),
        ("sampling", "promise_bias", 1.0, "promise_bias 1"),
        ("engine", "dtype", "int8", "engine.dtype 'int8'"),
        ("engine", "slot_tokens", 1025, "engine.slot_tokens 1025: expected at least 1026"),
        ("optimisation", "max_steps", None, "optimisation.max_steps"),
        ("optimisation", "accumulate", 2, "optimisation.accumulate 2"),
        ("schedule", "keep_checkpoints", 0, "keep_checkpoints 0: expected a positive integer"),
        ("schedule", "eval_steps", 5, "schedule.eval_steps 5"),
        ("model", "init_from", "runs/out", "is model.init_from"),
        ("model", "positions", "fixed", "model.positions 'fixed'"),
        ("lora", "dropout", 0.1, "lora.dropout 0.1: has no effect"),
    ],
)
def test_a_mistake_is_named(section: str, key: str, value: Any, message: str):
    data = {**VALID, section: {**VALID.get(section, {}), key: value}}
    if section == "rollout" and key == "prompts":
        data["optimisation"] = {**VALID["optimisation"], "rows": 16}
    with pytest.raises(ConfigError) as error:
        rl_config(data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_model_does_not_take_the_twin_s_place():
    with pytest.raises(ConfigError, match=r"output_dir: runs/out: is twin; name another directory"):
        rl_config({**VALID, "twin": "runs/other/../out"})


def test_a_link_to_the_output_is_the_output(tmp_path: Path):
    (tmp_path / "start").symlink_to(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"is model\.init_from"):
        rl_config(
            {**VALID, "output_dir": str(tmp_path / "out"), "model": {"init_from": str(tmp_path / "start")}}
        )


def test_a_threshold_that_no_answer_reaches_is_refused():
    judge = {"kind": "reward", "reward": {"model": "runs/judge"}}
    with pytest.raises(
        ConfigError, match=r"reward\.min_quality 1\.0: expected below 1 with judge\.kind reward"
    ):
        rl_config({**VALID, "judge": judge})
    rl_config({**VALID, "judge": judge, "reward": {"quality_weight": 4, "min_quality": 0.5}})


def test_the_forwards_of_a_step_follow_from_the_batch():
    config = rl_config({**VALID, "rollout": {"prompts": 6}, "workers": {"num_workers": 2}})
    assert config.batch_answers == 48
    assert config.accumulate == 6


@pytest.mark.parametrize("path", sorted((ROOT / "configs/rl").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_valid(path: Path):
    config = load_config(path, RlConfig)
    assert config.optimisation.deepspeed is not None
    assert (ROOT / config.optimisation.deepspeed).is_file()
