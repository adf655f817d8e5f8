"""The methods of an evaluation: ways to answer a prompt, made from their configuration."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig, LoadedModel, Request, SamplingParams, load_model
from pasta.engine.ranks import Ranks
from pasta.engine.section import EngineSection
from pasta.evaluation.config import MethodSection, SotSection
from pasta.evaluation.methods.answers import Answer, Method
from pasta.evaluation.methods.endpoint import EndpointMethod
from pasta.evaluation.methods.sot import SotEndpointMethod, SotMethod
from pasta.interpreter import Limits
from pasta.lang import Codec, encode_messages


class EngineMethod:
    """Greedy decoding by the engine, one prompt at a time. ``parallel`` false masks promises out."""

    def __init__(self, engine: Engine, limits: Limits, *, parallel: bool, promise_bias: float = 0.0) -> None:
        self.engine = engine
        self._request = Request(
            limits=limits, parallel=parallel, sampling=SamplingParams(promise_bias=promise_bias)
        )

    def answer(self, prompt: Prompt) -> Answer:
        """Answer once, timed from the prompt's token ids to the finished text. Raises UserError if it does not fit."""
        codec = self.engine.codec
        request = self._request.replace(prompt_ids=encode_messages(codec, prompt.messages))
        self.engine.prefixes.forget()  # else the first run alone would pay for the prefill
        begun = time.perf_counter()
        result = self.engine.generate(request)
        seconds = time.perf_counter() - begun
        return replace(Answer.from_result(result, codec), seconds=(seconds,))


def make_methods(
    methods: Mapping[str, MethodSection],
    limits: Limits,
    engine: EngineSection,
    keys: Mapping[str, str | None],
    ranks: Ranks | None = None,
    num_workers: int = 1,
) -> dict[str, Method]:
    """Make all methods of one of ``num_workers`` workers, which share the limits of endpoints evenly, by name in their
    order; ``keys`` are those of methods with an endpoint. With ``ranks`` this process has its part of each model.

    A model is loaded once, whatever the number of methods that use it. Raises UserError if one cannot be loaded.
    """
    engines = _Engines(engine, ranks)
    return {
        name: _make(section, 1 / num_workers, limits, engines, keys.get(name))
        for name, section in methods.items()
    }


def number_formats(methods: Mapping[str, Method]) -> dict[str, str]:
    """The number format that each method's model computes in here, which ``dtype: auto`` leaves to the machine; an
    endpoint's is unknown."""
    engines = {
        name: method.engine
        for name, method in methods.items()
        if isinstance(method, EngineMethod | SotMethod)
    }
    return {name: engine.loaded.format.name for name, engine in engines.items()}


def _make(
    section: MethodSection, share: float, limits: Limits, engines: "_Engines", key: str | None
) -> Method:
    words = section.sot or SotSection()
    if section.endpoint is not None:
        endpoint = section.endpoint.share(share)
        if section.kind == "sot":
            return SotEndpointMethod(endpoint, key, limits, words)
        return EndpointMethod(endpoint, key, limits)
    assert section.model is not None, "MethodSection guarantees it"
    if section.kind == "sot":
        return SotMethod(engines.of(section.model, one_request=False), limits, words)
    return EngineMethod(
        engines.of(section.model, one_request=True, hint_factor=section.hint_factor),
        limits,
        parallel=section.kind != "sequential",
        promise_bias=section.promise_bias,
    )


class _Engines:
    """Engines by model. A model whose methods send several requests at once gets slots for them, any other gets one
    slot."""

    def __init__(self, section: EngineSection, ranks: Ranks | None) -> None:
        self._section, self._ranks = section, ranks
        self._models: dict[str, LoadedModel] = {}
        self._engines: dict[tuple[str, bool, float], Engine] = {}

    def of(self, source: str, *, one_request: bool, hint_factor: float = 1.0) -> Engine:
        if source not in self._models:
            self._models[source] = load_model(
                source, dtype=self._section.dtype, device=self._section.device, ranks=self._ranks
            )
        key = source, one_request, hint_factor
        if key not in self._engines:
            config = EngineConfig.of(self._section)
            loaded = self._models[source]
            if hint_factor != 1.0:
                positions = replace(loaded.codec.positions, hint_factor=hint_factor)
                loaded = replace(loaded, codec=Codec(loaded.tokenizer, positions=positions))
            self._engines[key] = Engine(loaded, replace(config, num_slots=1) if one_request else config)
        return self._engines[key]
