"""Checks that llama.cpp computes the same function as the engine, on weights that both hold in 32 bits."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pasta.benchmark.peers.llama import LlamaContext, LlamaModel
from pasta.benchmark.peers.weights import Weights
from pasta.benchmark.steps import timed_steps
from pasta.engine import DoneEvent, Engine, EngineConfig, Request, TokenEvent
from pasta.interpreter import Limits
from pasta.stages.records import Record

_TOKENS = 24


def check_tokens(weights: Weights, prompts: Sequence[Sequence[int]], say: Callable[[str], None]) -> Record:
    """Decode greedily with llama.cpp in f32 and with the engine in float32, and compare.

    Returns the number of tokens, how many are the same, and the largest difference of a log-probability up to the first
    token that differs. llama.cpp knows no sliding window for this family, so the engine sees all tokens too. Both
    choose among the tokens that the engine allows in a sequential answer: text, and its end.
    """
    loaded = weights.load("float32", context=1024)
    config, grammar = loaded.model.config, loaded.codec.grammar
    if getattr(config, "sliding_window", None):
        config.sliding_window = None
    allowed = np.zeros(config.vocab_size, dtype=bool)
    allowed[: grammar.vocab_size] = np.frombuffer(grammar.text_mask, dtype=np.uint8)
    allowed[grammar.eos_id] = True
    engine = Engine(loaded, EngineConfig(num_slots=1, slot_tokens=1024, trace_forward=False))
    model = LlamaModel(weights.gguf("f32", 1024, say))
    same = total = 0
    difference = 0.0
    for prompt in prompts:
        theirs, ours = _decode(model, prompt, allowed, grammar.eos_id), _engine_tokens(engine, prompt)
        total += max(len(theirs), len(ours))
        for (token, score), (choice, own) in zip(theirs, ours, strict=False):
            if token != choice:
                break
            same += 1
            difference = max(difference, abs(score - own))
    build = model.build
    model.close()
    return {"tokens": total, "same": same, "difference": difference, "build": build}


def _decode(
    model: LlamaModel, prompt: Sequence[int], allowed: NDArray[np.bool_], end: int
) -> list[tuple[int, float]]:
    """Greedy tokens of llama.cpp, each with its log-probability."""
    context = LlamaContext(model, len(prompt) + _TOKENS + 1, 1, 1, flash=False, exact=True)
    context.begin([prompt])
    found: list[tuple[int, float]] = []
    while len(found) < _TOKENS and not (found and found[-1][0] == end):
        logits = context.logits(1)[0].astype(np.float64)
        total = logits.max() + math.log(np.exp(logits - logits.max()).sum())
        token = int(np.where(allowed, logits, -np.inf).argmax())
        found.append((token, float(logits[token] - total)))
        context.last = [token]
        context.step()
    context.close()
    return found


def _engine_tokens(engine: Engine, prompt: Sequence[int]) -> list[tuple[int, float]]:
    """Greedy tokens of the engine, each with its log-probability."""
    # One more than is compared: the last one must be the end.
    limits = Limits(max_tokens=_TOKENS + 1, max_chunk_tokens=_TOKENS + 1)
    engine.submit(Request(prompt_ids=prompt, limits=limits, parallel=False, logprobs=0))
    found = []
    for events, _ in timed_steps(engine):
        for event in events:
            if isinstance(event, DoneEvent):
                event.outcome()
            elif isinstance(event, TokenEvent) and event.logprobs is not None:
                found.append((event.token, event.logprobs.chosen))
    return found[:_TOKENS]
