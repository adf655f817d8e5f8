"""The ``engine`` section of a configuration."""

from dataclasses import dataclass

from pasta.engine.request import EngineConfig
from pasta.errors import UserError

#: Number formats that a model may be loaded in: torch's names.
DTYPES = ("float32", "bfloat16", "float16")


def check_dtype(name: str) -> None:
    """Raise ``UserError`` for a name that is none of ``DTYPES``."""
    if name not in DTYPES:
        raise UserError(f"dtype: {name!r}, expected one of {', '.join(DTYPES)}")


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
        check_dtype(self.dtype)
        for name in ("num_slots", "slot_tokens", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a positive integer")

    def to_engine(self) -> EngineConfig:
        """The same as the engine's own configuration."""
        return EngineConfig(self.num_slots, self.slot_tokens, self.prefill_chunk)
