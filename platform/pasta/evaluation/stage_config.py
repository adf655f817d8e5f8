"""Sections that the configurations of several stages share."""

from dataclasses import dataclass
from typing import Literal

from pasta.engine.loading import resolve_dtype
from pasta.engine.request import EngineConfig


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


@dataclass(frozen=True, slots=True)
class EngineSection:
    """The decoding engine of each worker: ``num_slots`` answers at once, each within ``slot_tokens`` of cache.

    In float32 a sample depends on its seed alone. In bfloat16 the last bits of a logit depend on what is decoded
    beside it, so that another ``num_slots`` may draw another token; the same configuration draws the same.
    """

    dtype: str = "float32"
    device: str = "auto"
    num_slots: int = 16
    slot_tokens: int = 2048
    prefill_chunk: int = 256

    def __post_init__(self) -> None:
        resolve_dtype(self.dtype)
        for name in ("num_slots", "slot_tokens", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a positive integer")

    def to_engine(self) -> EngineConfig:
        """The same as the engine's own configuration."""
        return EngineConfig(self.num_slots, self.slot_tokens, self.prefill_chunk)
