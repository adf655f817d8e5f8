"""A rollout actor whose weights could not be loaded says so when it is asked for answers, for nobody waits before."""

from pathlib import Path
from typing import Any

import pytest

from jobs.rollouts import _Sampler
from pasta.rl.rollouts import Group
from tests.rl.runs import rl_config, rl_dict


class Full:
    """An engine that has weights and no memory for others."""

    def load(self, weights: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    def sample(self, batch: int, groups: Any, score: bool) -> list[list[str]]:
        return [["an answer of the old weights"]]


@pytest.mark.parametrize("loads", [1, 2])
def test_weights_that_could_not_be_loaded_end_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sampler = _Sampler(rl_config(rl_dict(tmp_path)), str(tmp_path))
    sampler._roller = Full()
    for version in range(loads):
        sampler.load({}, version)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        sampler.sample(1, [Group("a", [1])])
