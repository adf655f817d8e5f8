"""The pool that annotate, sample, score and evaluate share, on real Ray: too little room, dead workers, Ctrl-C."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.cluster import ray_cluster
from jobs.pool import run_shards
from pasta.errors import UserError
from pasta.stages.workers import DecodingWorkersSection, LightWorkersSection, WorkersSection
from tests.support.interrupts import press_and_swallow

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("small_cluster")]


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[None]:
    """Room for one worker."""
    with ray_cluster(None, 1):
        yield


def test_a_worker_that_finds_no_place_holds_nothing_up():
    """A cluster smaller than the configuration, or than it was: a node has gone and no other has come."""
    results: dict[int, int] = {}
    run_shards(
        lambda: lambda shard: shard * shard,
        {number: number for number in range(4)},
        results.__setitem__,
        WorkersSection(num_workers=2, use_gpu=False),
    )
    assert results == {0: 0, 1: 1, 2: 4, 3: 9}


def test_a_shard_that_kills_its_workers_ends_the_job_in_one_line_and_the_others_are_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """What Ray Data's actor pool cannot do: it tries such a shard for ever, or ends with a stack trace."""
    deaths = tmp_path / "deaths"

    def work(shard: int) -> int:
        if shard == 3:
            with deaths.open("a") as file:
                file.write("one\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return shard

    results: dict[int, int] = {}
    options = LightWorkersSection(num_workers=1, max_failures=1)
    with pytest.raises(UserError) as error:
        run_shards(lambda: work, {number: number for number in range(4)}, results.__setitem__, options)
    assert re.fullmatch(
        r"workers\.max_failures: 2 workers died, the last one at shard 3 \(.*\); finished shards are kept",
        str(error.value),
    )
    # Ray does not know a process that the system has killed, as it does where memory is short.
    assert "; the system kills processes for which it has no memory)" in str(error.value)
    assert deaths.read_text().split() == ["one"] * 2
    # Each death says why, not the last one alone.
    assert re.search(
        r"a worker died; shard 3 is done again \(.* for which it has no memory\)", capfd.readouterr().err
    )
    assert results == {0: 0, 1: 1, 2: 2}


def test_a_shard_is_not_waited_for_once_ray_has_ended(monkeypatch, tmp_path: Path):
    """The system kills processes for which it has no memory: its raylet's workers went, and no other ever came."""
    begun = tmp_path / "begun"

    def work(seconds: float) -> None:
        begun.touch()
        time.sleep(seconds)

    def check_ray() -> None:
        if begun.exists():
            raise UserError("Ray's process raylet has ended")

    monkeypatch.setattr("jobs.cluster.check_ray", check_ray)
    with pytest.raises(UserError, match="raylet has ended"):
        run_shards(lambda: work, {0: 3600}, lambda *_: None, LightWorkersSection(num_workers=1))


def test_a_worker_whose_processes_find_no_gpus_on_this_machine_is_refused():
    options = DecodingWorkersSection(tensor_parallel=2, use_gpu=True)
    with pytest.raises(UserError) as error:
        run_shards(lambda: str, {0: 0}, lambda *_: None, options)
    assert str(error.value) == (
        "workers.tensor_parallel: 2 processes take a GPU each, and this machine has 0; expected at most as many, or "
        "workers.use_gpu: false"
    )


def test_a_worker_without_a_gpu_sees_none_of_the_machine_s():
    """``engine.device: auto`` is the CPU there. By default Ray shows such a worker all of them."""
    seen: dict[int, str | None] = {}
    options = WorkersSection(num_workers=1, use_gpu=False)
    run_shards(lambda: lambda _: os.environ.get("CUDA_VISIBLE_DEVICES"), {0: 0}, seen.__setitem__, options)
    assert seen == {0: ""}


@pytest.mark.timeout(120)
def test_a_run_that_failed_leaves_its_places_to_the_next_one():
    """Its error is kept, as a caller may do, and with it all that its frames hold."""

    def full(number: int, result: int) -> None:
        raise UserError("no space left")

    results: dict[int, int] = {}
    options = LightWorkersSection(num_workers=1)
    with pytest.raises(UserError) as kept:
        run_shards(lambda: lambda shard: shard, {0: 0, 1: 1}, full, options)
    run_shards(lambda: lambda shard: shard, {0: 0, 1: 1}, results.__setitem__, options)
    assert (results, str(kept.value)) == ({0: 0, 1: 1}, "no space left")


def test_ctrl_c_that_ray_has_swallowed_ends_the_run_all_the_same():
    """Python forgets what is raised in a finalizer, and Ray's objects have many."""
    done: list[int] = []

    def swallow(number: int, _: Any) -> None:
        done.append(number)
        press_and_swallow()

    with pytest.raises(KeyboardInterrupt):
        run_shards(
            lambda: lambda shard: shard,
            {number: number for number in range(4)},
            swallow,
            WorkersSection(num_workers=1, use_gpu=False),
        )
    assert done == [0]
