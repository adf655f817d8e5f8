"""The decoding engine: threads as lanes of one batched forward, on torch and transformers alone."""

from pasta.engine.aio import AsyncEngine, EngineStopped
from pasta.engine.engine import Engine
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
    "EngineStopped",
    "Event",
    "FinishEvent",
    "ForkEvent",
    "JoinEvent",
    "LoadedModel",
    "Logprobs",
    "Request",
    "Result",
    "SamplingParams",
    "TokenEvent",
    "WaitEvent",
    "load_model",
    "random_model",
    "read_model_config",
]
