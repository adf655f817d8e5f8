"""The decoding engine: threads as lanes of one batched forward, on torch and transformers alone.

The inputs and outputs (``EngineConfig``, ``Request``, ``SamplingParams``, the events) are imported without torch, whose
import takes seconds. What needs torch is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pasta.engine.families import SUPPORTED_ARCHITECTURES, read_model_config
from pasta.engine.request import (
    DoneEvent,
    EngineConfig,
    EngineFull,
    EngineStopped,
    Event,
    ForkEvent,
    Logprobs,
    Path,
    Request,
    Result,
    SamplingParams,
    ThreadProgress,
    TokenEvent,
    UnknownRequest,
)
from pasta.placement import LaneCosts

if TYPE_CHECKING:
    from pasta.engine.aio import AsyncEngine
    from pasta.engine.costs import measure_costs
    from pasta.engine.engine import Engine
    from pasta.engine.loading import LoadedModel, load_model, random_model

#: The modules that need torch, and the names that they define here.
_HEAVY = {
    "aio": ("AsyncEngine",),
    "costs": ("measure_costs",),
    "engine": ("Engine",),
    "loading": ("LoadedModel", "load_model", "random_model"),
}

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "AsyncEngine",
    "DoneEvent",
    "Engine",
    "EngineConfig",
    "EngineFull",
    "EngineStopped",
    "Event",
    "ForkEvent",
    "LaneCosts",
    "LoadedModel",
    "Logprobs",
    "Path",
    "Request",
    "Result",
    "SamplingParams",
    "ThreadProgress",
    "TokenEvent",
    "UnknownRequest",
    "load_model",
    "measure_costs",
    "random_model",
    "read_model_config",
]


def __getattr__(name: str) -> Any:
    """The names above that need torch (PEP 562)."""
    for module, names in _HEAVY.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
