"""All tests: their environment, set before anything heavy is imported; which run at once; which start Ray.

`pytest` by itself runs the same tests as `make test`, in one process.
"""

import functools
import gc
import os
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from serve.imports import uncollected
from tests.support.memory import Recordings, return_large_blocks

BIN = Path(sys.prefix) / "bin"

for name, value in {
    # Tests share their cores: threads that spin while they wait would make each other many times slower.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # How often Ray Train's controller looks at its workers: every two seconds otherwise.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # The kernels for GPUs run in Triton's interpreter.
    "TRITON_INTERPRET": "1",
    # Compiled once, and kept with the environment.
    "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
}.items():
    os.environ.setdefault(name, value)

# DeepSpeed calls ninja by name, and tests call the environment's commands.
if str(BIN) not in os.environ.get("PATH", "").split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])


# Shared machines stall: how long an example takes, or its making, says nothing.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Each client of httpx, OpenAI's included, loads all root certificates, for http:// addresses too: 30 ms of processor
# whenever a test asks a service something.
ssl.create_default_context = functools.cache(ssl.create_default_context)


# -- which tests start Ray ---------------------------------------------------------------------------------

E2E = Path(__file__).parent / "e2e"
#: Ray would make its sockets there, and cannot.
NO_RAY = "/dev/null/only-tests-marked-e2e-start-Ray"


return_large_blocks()
RECORDINGS = Recordings()


def is_e2e(item: pytest.Item) -> bool:
    return item.get_closest_marker("e2e") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Ray fails to start in a test without the mark e2e, and in every process that such a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_e2e(item):
            patch.setenv("RAY_TMPDIR", NO_RAY)
        # A Decoder freezes what it finds at its start, for its process alone: here, engines of other tests.
        patch.setattr(gc, "freeze", lambda: None)
        outcome = yield
    RECORDINGS.free()
    if nextitem is None or nextitem.path != item.path:
        RECORDINGS.file_ends()
    return outcome


# -- collecting --------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported is no garbage: none is looked for until all tests are collected."""
    with uncollected():
        return (yield)


# -- what runs at once -------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what tests/e2e holds; several workers begin with what waits most, and unit tests fill the gaps."""
    for item in items:
        if E2E in item.path.parents:
            item.add_marker("e2e")
            item.add_marker("slow")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not is_e2e(item), item.get_closest_marker("slow") is None))


class Together(LoadFileScheduling):
    """A file's tests run in one worker, one after another; so do those of a folder of tests/e2e, which share a
    service."""

    def _split_scope(self, nodeid: str) -> str:
        folder, _, file = super()._split_scope(nodeid).rpartition("/")
        return folder if folder.startswith("tests/e2e/") else f"{folder}/{file}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """The scheduler of ``pytest -n``."""
    return Together(config, log)


# -- what a process holds ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def recorded_forwards_are_forgotten() -> Iterator[None]:
    """Torch keeps each recorded forward, 13 MB and more, as long as the process lives: here as long as a test does."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.jit._state._python_cu = torch._C.CompilationUnit()
