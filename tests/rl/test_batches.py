"""What is asked for a batch."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pasta.judges.grader import GraderJudge
from pasta.rl.batches import Batches, Source
from pasta.rl.rollouts import Group, Rollout, Weights
from tests.rl.runs import rl_config, rl_dict
from tests.training.pair_runs import CODEC


class Asked(Exception):
    """Ends a batch once its answers have been asked for."""


class Watching:
    """Keeps what is asked for."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def publish(self, weights: Weights, version: int) -> None:
        pass

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        self.groups.extend(groups)
        raise Asked


def test_a_prompt_that_a_batch_has_twice_gets_other_answers_the_second_time(tmp_path: Path) -> None:
    config = rl_config(rl_dict(tmp_path))
    rollouts = Watching()
    records = [{"id": "a", "prompt_ids": [1]}]
    batches = Batches(config, records, CODEC.grammar, Source(rollouts, GraderJudge()))
    assert batches.schedule[0] == [0, 0]
    with pytest.raises(Asked):
        batches._roll(0)
    first, second = (config.sampling.params(f"0 {group.id}", 0).seed for group in rollouts.groups)
    assert first != second
