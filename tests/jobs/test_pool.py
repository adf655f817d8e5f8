"""The pool that evaluate, sample and score share, on real Ray: where there is less room than was asked for."""

from typing import Any

import pytest

from jobs.cluster import ray_cluster
from jobs.pool import run_shards
from pasta.stages.workers import WorkersSection
from tests.support.interrupts import press_and_swallow

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


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


def test_ctrl_c_that_ray_has_swallowed_ends_the_run_all_the_same():
    """Python forgets what is raised in a finalizer, and Ray's objects have many."""
    done: list[int] = []

    def swallow(number: int, _: Any) -> None:
        done.append(number)
        press_and_swallow()

    with ray_cluster(None, 1, dashboard=False), pytest.raises(KeyboardInterrupt):
        run_shards(
            lambda: lambda shard: shard,
            {number: number for number in range(4)},
            swallow,
            WorkersSection(num_workers=1, use_gpu=False),
        )
    assert done == [0]
