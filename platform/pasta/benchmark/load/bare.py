"""Decodes the same prompts with the bare engine: in one process, without a service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from pasta.benchmark.load.ways import Way
from pasta.data.linearise import Messages
from pasta.engine import Engine, EngineConfig, LoadedModel, Request
from pasta.interpreter import Limits


@dataclass(frozen=True)
class Models:
    """What a service with one decoder loads: models by name, the sizes of their engines, the limits of an answer."""

    loaded: Mapping[str, LoadedModel]
    config: EngineConfig
    limits: Limits


class Bare:
    """One engine for each way of answering. ``models.limits`` are those of every answer."""

    def __init__(self, models: Models, ways: Sequence[Way]) -> None:
        self._limits = models.limits
        engines = {way.model: Engine(models.loaded[way.model], models.config) for way in ways}
        self._engines = {way.name: engines[way.model] for way in ways}

    def throughput(self, way: Way, prompts: Sequence[Messages], at_once: int) -> tuple[int, float]:
        """Decode all prompts, ``at_once`` of them at a time; returns tokens (tags counted) and seconds."""
        engine = self._engines[way.name]
        requests = [self._request(way, prompt) for prompt in prompts]
        begun = perf_counter()
        tokens = sum(result.num_tokens for result in engine.decode(requests, at_once))
        return tokens, perf_counter() - begun

    def seconds(self, way: Way, prompt: Messages) -> float:
        """Seconds of a prompt, alone."""
        return self.throughput(way, [prompt], 1)[1]

    def _request(self, way: Way, prompt: Messages) -> Request:
        ids = self._engines[way.name].codec.encode_prompt(prompt)
        return Request(prompt_ids=ids, limits=self._limits, parallel=way.name == "parallel")
