"""The pool that evaluate, sample and score share, on real Ray: where there is less room than was asked for."""

import pytest

from jobs.cluster import ray_cluster
from jobs.pool import run_shards
from pasta.evaluation.stage_config import WorkersSection

pytestmark = pytest.mark.slow


def test_a_worker_that_finds_no_place_holds_nothing_up():
    """A cluster smaller than the configuration, or than it was: a node has gone and no other has come."""
    results: dict[int, int] = {}
    with ray_cluster(None, 1, dashboard=False):
        run_shards(
            lambda: lambda shard: shard * shard,
            {number: number for number in range(4)},
            results.__setitem__,
            WorkersSection(num_workers=2, use_gpu=False),
        )
    assert results == {0: 0, 1: 1, 2: 4, 3: 9}
