"""The ``engine`` section of a configuration."""

from dataclasses import dataclass

from pasta.engine.loading import resolve_dtype
from pasta.engine.request import EngineConfig


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
