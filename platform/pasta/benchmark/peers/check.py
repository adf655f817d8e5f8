"""Checks that llama.cpp computes the same function as the engine, on weights that both hold in 32 bits."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from pasta.benchmark.peers.llama import LlamaContext, LlamaModel
from pasta.benchmark.peers.weights import Weights
from pasta.engine import Engine, EngineConfig, Request, TokenEvent
from pasta.interpreter import Limits
from pasta.stages.records import Record

_TOKENS = 24
_MOST_LIKELY = 8
_UNBOUNDED = Limits(max_tokens=1 << 30, max_chunk_tokens=1 << 30)


def check_tokens(weights: Weights, prompts: Sequence[Sequence[int]], say: Callable[[str], None]) -> Record:
    """Decode greedily with llama.cpp in f32, feed the same tokens to the engine in float32, and compare: how many
    tokens, how many of them the engine chooses as well, and the largest difference of a log-probability.

    llama.cpp knows no sliding window for this family, so the engine sees all tokens too. Control tokens, which the
    engine does not choose by itself, are left out on both sides.
    """
    loaded = weights.load("float32", context=1024)
    config = loaded.model.config
    if getattr(config, "sliding_window", None):
        config.sliding_window = None
    barred = sorted({*loaded.codec.control.as_tuple(), *loaded.codec.eos_ids})
    engine = Engine(loaded, EngineConfig(num_slots=1, slot_tokens=1024, trace_forward=False))
    model = LlamaModel(weights.gguf("f32", 1024, say))
    same = total = 0
    difference = 0.0
    for prompt in prompts:
        tokens, scores = _decode(model, prompt, barred)
        found = _engine_tokens(engine, prompt, tokens, {*barred})
        for token, score, (choice, ours) in zip(tokens, scores, found, strict=True):
            total += 1
            same += token == choice
            difference = max(difference, abs(score - ours))
    build = model.build
    model.close()
    return {"tokens": total, "same": same, "difference": difference, "build": build}


def _decode(model: LlamaModel, prompt: Sequence[int], barred: Sequence[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens of llama.cpp, each with its log-probability."""
    context = LlamaContext(model, len(prompt) + _TOKENS + 1, 1, 1, flash=False)
    context.begin([prompt])
    tokens, scores = [], []
    for _ in range(_TOKENS):
        logits = context.logits(1)[0].astype(np.float64)
        total = logits.max() + math.log(np.exp(logits - logits.max()).sum())
        allowed = logits.copy()
        allowed[list(barred)] = -np.inf
        token = int(allowed.argmax())
        tokens.append(token)
        scores.append(float(logits[token] - total))
        context.last = [token]
        context.step()
    context.close()
    return tokens, scores


def _engine_tokens(
    engine: Engine, prompt: Sequence[int], tokens: Sequence[int], barred: set[int]
) -> list[tuple[int, float]]:
    """The engine's own choice before each of ``tokens``, and the log-probability that it gives to that token."""
    engine.submit(
        Request(
            prompt_ids=prompt,
            limits=_UNBOUNDED,
            parallel=False,
            forced=[*tokens, engine.codec.eos_id],
            logprobs=_MOST_LIKELY + len(barred),
        )
    )
    found = []
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent) and event.logprobs is not None:
                choice = next(token for token, _ in event.logprobs.top if token not in barred)
                found.append((choice, event.logprobs.chosen))
    return found[: len(tokens)]
