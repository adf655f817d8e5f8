"""Measures what lanes cost on this engine and machine: once, on an idle engine, in about fifty steps."""

import dataclasses
import time

from pasta.engine.engine import Engine
from pasta.engine.request import DoneEvent, Path, Request, ThreadProgress, TokenEvent
from pasta.errors import UserError
from pasta.interpreter import UNBOUNDED
from pasta.lang import Codec
from pasta.placement import LaneCosts

_LANES = (1, 2, 4, 8, 16, 32)
#: Steps with each number of lanes; the fastest counts, since other work on the machine only adds to a step.
_STEPS = 6
#: A prompt, two tokens, the end of text, and the engine's own place: room for one step.
_LEAST = 5


def measure_costs(engine: Engine) -> LaneCosts:
    """Measure the lane costs of an idle engine after a short prompt; a step over a long context costs more.

    Takes about fifty steps, one by one, and leaves nothing in the cache. Raises UserError for a context of fewer than
    five tokens, which has no room for a step.
    """
    config = engine.config
    # The documents are too short for steps together, the first of which record the loop over them.
    engine.config = dataclasses.replace(config, multi_step=False)
    try:
        return _measured(engine)
    finally:
        engine.config = config


def _measured(engine: Engine) -> LaneCosts:
    if engine.context < _LEAST:
        raise UserError(f"slot_tokens: a context of {engine.context} tokens; expected at least {_LEAST}")
    lanes = _LANES if engine.codec.parallel else _LANES[:1]
    documents = {count: _document(engine, count) for count in lanes}
    # One lane's fits into any context.
    fitting = {n: found for n, found in documents.items() if n == 1 or len(found[0]) + 4 < engine.context}
    step_s = {count: _fastest(engine, count, *found) for count, found in fitting.items()}
    prefill_s = min(_prefill(engine) for _ in range(2))
    engine.prefixes.forget()
    return LaneCosts.of(step_s, prefill_s)


def _document(engine: Engine, lanes: int) -> tuple[list[int], ThreadProgress]:
    """Return a document with ``lanes`` parallel threads as ids to force, and the progress after which all of them
    run."""
    codec = engine.codec
    (filler,) = codec.encode_text(" a")[:1]
    text = [filler] * (_STEPS + 4)
    if lanes == 1:
        # A small context has room for fewer steps, beside a prompt of a token and the engine's own place.
        return [*text[: engine.context - 3], codec.eos_id], ThreadProgress([((), filler)])
    return parallel_chunks(codec, lanes, text)


def parallel_chunks(codec: Codec, lanes: int, text: list[int]) -> tuple[list[int], ThreadProgress]:
    """The ids of a document of ``lanes`` chunks that hold ``text``, and the progress after which all of them decode."""
    promise = codec.encode_promise("a", 10)
    chunk = [codec.control.async_open, *text, codec.control.async_close]
    opened: list[tuple[Path, int]] = [((), token) for _ in range(lanes) for token in promise]
    begun: list[tuple[Path, int]] = [((number,), text[0]) for number in range(lanes)]
    return [*[*promise, *chunk] * lanes, codec.control.sync, codec.eos_id], ThreadProgress([*opened, *begun])


def _fastest(engine: Engine, lanes: int, document: list[int], progress: ThreadProgress) -> float:
    """The fastest of ``_STEPS`` steps, or of those to the document's end, in which so many threads, and nothing else,
    decode a token each."""
    prompt = engine.codec.encode_text(" a")[:1] * min(2, engine.context - 1 - len(document))
    request = Request(prompt, limits=UNBOUNDED, forced=document, progress=progress, drafts=False)
    request_id = engine.submit(request.replace(parallel=engine.codec.parallel))
    found: list[float] = []
    prefilled = ended = False
    while len(found) < _STEPS and not ended:
        begun = time.perf_counter()
        events = engine.step()
        spent = time.perf_counter() - begun
        ended = any(isinstance(event, DoneEvent) for event in events)
        tokens = sum(isinstance(event, TokenEvent) for event in events)
        if prefilled and tokens == lanes:
            found.append(spent)
        prefilled |= tokens > 0  # the step that ends the prompt also gives the first tokens
    engine.cancel(request_id)
    return min(found)


def _prefill(engine: Engine) -> float:
    """Seconds for each token of a prefill chunk."""
    engine.prefixes.forget()
    count = min(engine.runner.prefilled_at_once(engine.config.prefill_chunk), max(engine.context - 8, 1))
    prompt = engine.codec.encode_text(" a")[:1] * count
    parallel = engine.codec.parallel
    engine.submit(Request(prompt, limits=UNBOUNDED, forced=[engine.codec.eos_id], parallel=parallel))
    begun = time.perf_counter()
    events = engine.step()
    spent = time.perf_counter() - begun
    while not any(isinstance(event, DoneEvent) for event in events):
        events = engine.step()
    return spent / count
