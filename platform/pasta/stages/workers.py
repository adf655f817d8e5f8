"""The ``workers`` section of a configuration."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class WorkersSection:
    """A pool of workers, each with a model of its own. ``use_gpu: auto`` takes GPUs if the cluster has any.

    ``threads`` are a worker's on a CPU; ``max_failures`` workers may die before the stage gives up.
    """

    num_workers: int = 1
    use_gpu: bool | Literal["auto"] = "auto"
    threads: int = 1
    max_failures: int = 2

    def __post_init__(self) -> None:
        for name in ("num_workers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected at least 1")
        if self.max_failures < 0:
            raise ValueError(f"max_failures {self.max_failures}: expected 0 or more")
