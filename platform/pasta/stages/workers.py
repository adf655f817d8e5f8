"""The ``workers`` section of a configuration."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pasta.bounds import check_at_most, check_positive

#: More than clusters, and machines, have.
MOST_WORKERS, MOST_THREADS = 10_000, 1024
#: Of a share of a CPU, which Ray counts in ten-thousandths.
_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class WorkersSection:
    """Workers with a model each. ``use_gpu: auto`` takes GPUs if the cluster has any; with false workers see none.

    ``threads`` are a worker's on a CPU; ``max_failures`` workers may die before the job gives up (-1: any number).
    """

    num_workers: int = 1
    use_gpu: bool | Literal["auto"] = "auto"
    threads: int = 1
    max_failures: int = 2

    #: CPUs that a worker reserves.
    cpus: ClassVar[float] = 1.0
    holds_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "num_workers", "threads")
        check_at_most(self, num_workers=MOST_WORKERS, threads=MOST_THREADS)
        _check_failures(self)

    @property
    def processes(self) -> int:
        """How many processes each worker is."""
        return 1


@dataclass(frozen=True, slots=True)
class DecodingWorkersSection(WorkersSection):
    """Workers with an engine each. With ``tensor_parallel`` N a worker is N processes on one node that share its
    models: each has its part of them, and a GPU (or CPU) and ``threads`` of its own.
    """

    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        WorkersSection.__post_init__(self)
        check_positive(self, "tensor_parallel")

    @property
    def processes(self) -> int:
        """How many processes each worker is."""
        return self.tensor_parallel


@dataclass(frozen=True, slots=True)
class LightWorkersSection:
    """Workers without a model. ``cpus`` is what each reserves: less than 1 for one that mostly waits for an endpoint.

    ``max_failures`` workers may die before the job gives up (-1: any number).
    """

    num_workers: int = 2
    cpus: float = 1.0
    max_failures: int = 10

    use_gpu: ClassVar[bool] = False
    threads: ClassVar[int] = 1
    holds_model: ClassVar[bool] = False
    processes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_positive(self, "num_workers", "cpus")
        check_at_most(self, num_workers=MOST_WORKERS, cpus=MOST_THREADS)
        if self.cpus != round(self.cpus, _DECIMALS):
            raise ValueError(f"cpus {self.cpus}: expected at most {_DECIMALS} decimals")
        _check_failures(self)


def _check_failures(section: WorkersSection | LightWorkersSection) -> None:
    if section.max_failures < -1:
        raise ValueError(f"max_failures {section.max_failures}: expected 0 or more, or -1 for no limit")
