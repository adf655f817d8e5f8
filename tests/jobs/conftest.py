"""Ray for tests that call a job in this process."""

import sys
from collections.abc import Callable, Iterator

import pytest

from jobs.cluster import ray_cluster
from pasta.entrypoint import run_main


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A cluster of two CPUs that all of a file's tests use: a job takes one that this process is connected to."""
    with ray_cluster(None, 2):
        yield


@pytest.fixture
def exit_code(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command's ``main`` in this process: ``exit_code(main, "--config", path)``."""

    def run(main: Callable[[], int], *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["job", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_main(main)
        return int(ended.value.code or 0)

    return run
