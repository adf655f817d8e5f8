"""The kernels' threads: who takes which piece of the work changes nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from pasta.engine import Engine, EngineConfig, Request, kernels
from pasta.engine.packing import Int8Linear
from tests.support.kernels import built, needs_kernels
from tests.support.models import tiny

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    built()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    torch.manual_seed(0)
    return Int8Linear(nn.Linear(512, 2000).requires_grad_(False))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 512)


@pytest.fixture
def alone(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    outputs = layer(x)
    torch.set_num_threads(3)
    return outputs


@pytest.mark.parametrize("number", [2, 3, 7, 1])
def test_any_number_of_threads_computes_the_same(layer, x, alone, number):
    torch.set_num_threads(number)
    for _ in range(50):
        assert torch.equal(layer(x), alone)


def test_threads_that_have_gone_to_sleep_come_again(layer, x, alone):
    for _ in range(3):
        time.sleep(0.02)  # they sleep after 3 ms
        assert torch.equal(layer(x), alone)


def test_engines_that_compute_at_once_do_not_disturb_each_other(layer, x, alone):
    def compute(_: int) -> bool:
        return all(torch.equal(layer(x), alone) for _ in range(200))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(compute, range(3)))


def test_a_process_that_forks_has_threads_on_both_sides(layer, x, alone):
    assert torch.equal(layer(x), alone)
    if (child := os.fork()) == 0:
        os._exit(0 if torch.equal(layer(x), alone) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(layer(x), alone)


def test_claimed_threads_are_the_kernels_alone_until_they_are_given_back(layer, x, alone):
    def fail():
        assert torch.get_num_threads() == 1
        assert torch.equal(layer(x), alone)
        raise LookupError

    with pytest.raises(LookupError), kernels.claimed_threads():
        fail()
    assert torch.get_num_threads() == 3


def test_kernels_keep_their_threads_while_these_are_claimed(layer, x):
    torch.set_num_threads(11)  # more than elsewhere in this process
    before = len(os.listdir("/proc/self/task"))
    with kernels.claimed_threads():
        layer(x)
    assert len(os.listdir("/proc/self/task")) > before


@pytest.mark.slow
@pytest.mark.parametrize(("packed", "threads_of_torch"), [(True, 1), (False, 3)])
def test_an_engine_claims_the_threads_where_kernels_compute_all_of_its_model(packed, threads_of_torch):
    """torch's own operators are then too small to share, and its threads would spin on cores that the kernels need."""
    engine, seen = Engine(tiny(packed=packed), EngineConfig(num_slots=1)), set()
    engine.runner.before_forward = lambda: seen.add(torch.get_num_threads())
    engine.generate(Request(prompt_ids=[1, 2, 3], parallel=False))
    assert seen == {threads_of_torch}
    assert torch.get_num_threads() == 3


WITHOUT_ROOM = """
import resource, signal, torch
from torch import nn
from pasta.engine import kernels
from pasta.engine.packing import Int8Linear

assert kernels.ready()
torch.set_num_threads(1)
layer, x = Int8Linear(nn.Linear(512, 2000).requires_grad_(False)), torch.randn(2, 512)
alone = layer(x)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), -1))  # a thread's stack has 8 MiB
torch.set_num_threads(12)
assert torch.equal(layer(x), alone)
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


@pytest.mark.slow
def test_where_the_system_has_no_threads_left_there_are_fewer():
    """Nor are signals blocked from then on."""
    subprocess.run([sys.executable, "-c", WITHOUT_ROOM], check=True)
