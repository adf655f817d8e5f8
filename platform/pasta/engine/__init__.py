"""The decoding engine: threads as lanes of one batched forward, on torch and transformers alone."""

from pasta.engine.aio import AsyncEngine, EngineStopped
from pasta.engine.costs import LaneCosts, measure_costs
from pasta.engine.engine import Engine, EngineFull, UnknownRequest
from pasta.engine.loading import (
    SUPPORTED_ARCHITECTURES,
    LoadedModel,
    load_model,
    random_model,
    read_model_config,
)
from pasta.engine.request import (
    DoneEvent,
    EngineConfig,
    Event,
    FinishEvent,
    ForkEvent,
    JoinEvent,
    Path,
    Progress,
    Request,
    Result,
    TokenEvent,
    WaitEvent,
)
from pasta.engine.sampling import Logprobs, SamplingParams

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
