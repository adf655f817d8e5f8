"""A run of reinforcement learning of seconds: a tiny model with random weights, and answers from an engine in this
process."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta.config import parse_config
from pasta.rl.config import RlConfig
from pasta.rl.rollouts import Group, Rollout, Weights
from pasta.rl.sampling import Roller
from tests.training.pair_runs import save_tiny_model


def rl_dict(directory: Path, **changes: Any) -> dict[str, Any]:
    """The YAML of a tiny run: four answers to each of two atlas prompts a batch."""
    if not (directory / "start").exists():
        save_tiny_model(directory / "start")
    return {
        "name": "tiny",
        "output_dir": str(directory / "model"),
        "run_dir": str(directory / "runs"),
        "model": {"init_from": str(directory / "start"), "attention": "eager", "save_dtype": "float32"},
        "prompts": {"source": "atlas", "count": 4},
        "sampling": {"candidates": 4},
        "limits": {"max_tokens": 40},
        "engine": {"num_slots": 8, "slot_tokens": 400, "device": "cpu"},
        "judge": {"kind": "grader"},
        "reward": {"quality_weight": 4},
        "rollout": {"prompts": 2, "workers": {"num_workers": 1, "use_gpu": False}},
        "optimisation": {"learning_rate": 1e-3, "rows": 2, "max_steps": 2, "precision": "fp32"},
        "schedule": {"log_steps": 1, "save_steps": 0},
        "workers": {"num_workers": 2, "use_gpu": False},
        "tracking": {"mode": "disabled"},
        **changes,
    }


def rl_config(data: dict[str, Any]) -> RlConfig:
    """The same as a configuration."""
    return parse_config(data, RlConfig, "tiny.yaml")


@dataclass
class LocalRollouts:
    """Answers from an engine in this process."""

    roller: Roller
    score: bool = False
    version: int = -1
    published: list[int] = field(default_factory=list)

    def publish(self, weights: Weights, version: int) -> None:
        self.roller.load(weights)
        self.version = version
        self.published.append(version)

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        began = time.perf_counter()
        answers = self.roller.sample(batch, groups, score=self.score)
        return Rollout(answers, self.version, began, time.perf_counter())
