"""Rollout actors: their answers are the engine's, whatever becomes of an actor."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from jobs.rollouts import RolloutActors
from pasta.errors import UserError
from pasta.rl.config import RlConfig
from pasta.rl.rollouts import Group
from pasta.rl.sampling import Roller
from tests.rl.runs import rl_config, rl_dict

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray")]
GROUPS = [Group(f"prompt {n}", list(range(10, 30 + n))) for n in range(4)]


def config_of(directory: Path, **rollout: Any) -> RlConfig:
    data = rl_dict(directory)
    data["rollout"] |= {"staleness": 1, "workers": {"num_workers": 2, "use_gpu": False, **rollout}}
    return rl_config(data)


def weights_of(config: RlConfig) -> dict[str, torch.Tensor]:
    """Other weights than those on disk."""
    model = AutoModelForCausalLM.from_pretrained(str(config.model.init_from), dtype=torch.float32)
    torch.manual_seed(1)
    return {name: value.detach() + 0.1 * torch.randn_like(value) for name, value in model.named_parameters()}


def killed(actor: Any) -> None:
    import ray

    pid = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)


def test_answers_are_those_of_one_engine_with_the_published_weights_though_an_actor_dies(tmp_path: Path):
    config = config_of(tmp_path)
    weights = weights_of(config)
    roller = Roller(config)
    roller.load(weights)
    expected = roller.sample(5, GROUPS, score=True)
    with RolloutActors(config) as rollouts:
        rollouts.publish(weights, 3)
        killed(rollouts._actors[0])
        found = rollouts.sample(5, GROUPS)
    assert (found.version, found.lost) == (3, 1)
    assert [[a["response_ids"] for a in group] for group in found.candidates] == [
        [a["response_ids"] for a in group] for group in expected
    ]
    for ours, theirs in zip(found.candidates, expected, strict=True):
        for answer, other in zip(ours, theirs, strict=True):
            assert answer["logprobs"] == pytest.approx(other["logprobs"], abs=1e-4)


def test_a_run_gives_up_when_too_many_actors_die(tmp_path: Path):
    config = config_of(tmp_path, max_failures=0)
    with RolloutActors(config) as rollouts:
        rollouts.publish(weights_of(config), 0)
        killed(rollouts._actors[1])
        with pytest.raises(
            UserError, match=r"rollout\.workers\.max_failures: 1 actors died, the last one at batch 2"
        ):
            rollouts.sample(2, GROUPS)
