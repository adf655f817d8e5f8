"""What lanes cost on this engine, on this machine: measured once, by steps over forced documents."""

import time
from dataclasses import dataclass

from pasta.engine.engine import Engine
from pasta.engine.request import DoneEvent, Request, TokenEvent
from pasta.interpreter import Limits

#: Up to the knee a step costs at most this many times a step with one lane.
_KNEE_RATIO = 1.5
_LANES = (1, 2, 4, 8, 16)
_UNBOUNDED = Limits(max_tokens=1 << 30, max_chunk_tokens=1 << 30, max_threads=1 << 20)


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """``knee``: lanes up to which a step costs little more than with one; ``lane_s``: what a lane more adds to
    a step; ``prefill_s``: what a token of a prompt costs. Seconds."""

    knee: int
    lane_s: float
    prefill_s: float


def measure_costs(engine: Engine, rounds: int = 1) -> LaneCosts:
    """Time an idle engine's fastest steps. Takes a few hundred of them."""
    lanes = [count for count in _LANES if len(_document(engine, count)) + 4 < _context(engine)]
    step_s = {count: min(_fastest(engine, count) for _ in range(rounds)) for count in lanes}
    knee = max(count for count in lanes if step_s[count] <= _KNEE_RATIO * step_s[1] or count == 1)
    most = max(lanes)
    lane_s = max(0.0, step_s[most] - step_s[1]) / max(1, most - 1)
    prefill_s = min(_prefill(engine) for _ in range(rounds))
    return LaneCosts(knee, lane_s, prefill_s)


def _context(engine: Engine) -> int:
    return min(engine.config.slot_tokens, engine.loaded.max_positions)


def _document(engine: Engine, lanes: int) -> list[int]:
    """So many chunks, each long enough to be there when the last is forked."""
    codec = engine.codec
    filler = codec.encode_text(" a")[0]
    if lanes == 1:
        return [*[filler] * 12, codec.eos_id]
    promise = codec.encode_promise("a", 10)
    chunk = [
        codec.control.async_open,
        *[filler] * (len(promise) * (lanes - 1) + 8),
        codec.control.async_close,
    ]
    return [*[*promise, *chunk] * lanes, codec.control.sync, codec.eos_id]


def _fastest(engine: Engine, lanes: int) -> float:
    prompt = engine.codec.encode_text(" a")[:1] * 2
    engine.submit(Request(prompt, limits=_UNBOUNDED, forced=_document(engine, lanes)))
    fastest = float("inf")
    while True:
        begun = time.perf_counter()
        events = engine.step()
        spent = time.perf_counter() - begun
        if sum(isinstance(event, TokenEvent) for event in events) == lanes:
            fastest = min(fastest, spent)
        if any(isinstance(event, DoneEvent) for event in events):
            return fastest


def _prefill(engine: Engine) -> float:
    """Seconds a token of a chunk of a prompt."""
    count = min(engine.config.prefill_chunk, _context(engine) - 8)
    prompt = engine.codec.encode_text(" a")[:1] * count
    engine.submit(Request(prompt, limits=_UNBOUNDED, forced=[engine.codec.eos_id]))
    begun = time.perf_counter()
    events = engine.step()
    spent = time.perf_counter() - begun
    while not any(isinstance(event, DoneEvent) for event in events):
        events = engine.step()
    return spent / count
