"""The decoding engine: threads as lanes of one batched forward, on torch and transformers alone.

What goes in and comes out (``EngineConfig``, ``Request``, ``SamplingParams``, the events) is imported without torch,
which takes seconds; whatever computes is imported when it is first named.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pasta.engine.request import (
    DoneEvent,
    EngineConfig,
    Event,
    FinishEvent,
    ForkEvent,
    JoinEvent,
    Logprobs,
    Path,
    Progress,
    Request,
    Result,
    SamplingParams,
    TokenEvent,
    WaitEvent,
)
from pasta.placement import LaneCosts

if TYPE_CHECKING:
    from pasta.engine.aio import AsyncEngine, EngineStopped
    from pasta.engine.costs import measure_costs
    from pasta.engine.engine import Engine, EngineFull, UnknownRequest
    from pasta.engine.loading import (
        SUPPORTED_ARCHITECTURES,
        LoadedModel,
        load_model,
        random_model,
        read_model_config,
    )

#: The modules that need torch, and what they offer here.
_HEAVY = {
    "aio": ("AsyncEngine", "EngineStopped"),
    "costs": ("measure_costs",),
    "engine": ("Engine", "EngineFull", "UnknownRequest"),
    "loading": (
        "SUPPORTED_ARCHITECTURES",
        "LoadedModel",
        "load_model",
        "random_model",
        "read_model_config",
    ),
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
    "FinishEvent",
    "ForkEvent",
    "JoinEvent",
    "LaneCosts",
    "LoadedModel",
    "Logprobs",
    "Path",
    "Progress",
    "Request",
    "Result",
    "SamplingParams",
    "TokenEvent",
    "UnknownRequest",
    "WaitEvent",
    "load_model",
    "measure_costs",
    "random_model",
    "read_model_config",
]


def __getattr__(name: str) -> Any:
    """The names above that need torch (PEP 562)."""
    for module, names in _HEAVY.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
