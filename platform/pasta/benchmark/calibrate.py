"""Measures the costs of an engine's steps for ``pasta simulate``: several requests of several lanes, prefill, and the
overhead of the asyncio façade."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pasta.benchmark.steps import lane_request, longest_within, timed_steps
from pasta.engine import AsyncEngine, DoneEvent, Engine, EngineConfig, Event, LoadedModel, Request, TokenEvent
from pasta.errors import UserError
from pasta.interpreter import UNBOUNDED
from pasta.markdown import markdown
from pasta.simulation.calibration import Calibration, PrefillPoint, StepPoint
from pasta.stages.records import Record

#: Steps are timed while the cache grows by this much either way.
_HALF = 48
#: Prefilled tokens in one step, and tokens before them in the cache.
_PREFILLED, _BEFORE = (16, 64, 256), (0, 1024)
#: Steps of the answer with which the façade is timed.
_FACADE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Axes:
    """The values that are varied: requests at once, lanes of each, cached tokens of each (once and four times)."""

    requests: tuple[int, ...]
    lanes: tuple[int, ...]
    cache_tokens: int

    @property
    def cached(self) -> tuple[int, int]:
        """Both lengths of the cache."""
        return self.cache_tokens, 4 * self.cache_tokens


class CalibrationBench:
    """Times single steps of engines on one model. Raises ``UserError`` if lanes cannot be forked within the cache, or
    the model has too few positions for it."""

    def __init__(self, loaded: LoadedModel, axes: Axes) -> None:
        self._codec = loaded.codec
        self._filler = loaded.codec.encode_text(" a")[0]
        self._requests = {
            (count, lanes, cached): lane_request(
                loaded.codec, lanes, cached, min(_HALF, 3 * cached // 16), count
            )
            for count in axes.requests
            for lanes in axes.lanes
            for cached in axes.cached
        }
        self._before = [n for n in _BEFORE if n + max(_PREFILLED) + 2 < loaded.max_positions]
        if not self._before:
            raise UserError(
                f"calibrate: prompts of {max(_PREFILLED)} tokens are prefilled; the model has {loaded.max_positions} "
                f"positions, expected more than {max(_PREFILLED) + 2}"
            )
        longest = longest_within(loaded, self._requests.values(), axes.cache_tokens)
        slot_tokens = max(longest, max(self._before) + max(_PREFILLED)) + 2
        self._engines = {
            count: Engine(
                loaded,
                EngineConfig(
                    num_slots=count,
                    slot_tokens=slot_tokens,
                    prefill_chunk=slot_tokens,
                    reuse_prefixes=False,
                    drafts=0,
                    multi_step=False,
                ),
            )
            for count in {1, *axes.requests}
        }

    def round(self) -> Record:
        """Times one round, in milliseconds.

        ``steps``: the median and the least of steps alone, by requests, lanes and cached tokens. ``together``: the
        same of steps that run together, empty where the engine runs none. ``prefill``: by tokens and tokens before
        them. ``facade``: a step of one lane with the asyncio façade and without.
        """
        return {
            "steps": self._all_steps(together=False),
            "together": self._all_steps(together=True) if self._engines[1].runner.loops else {},
            "prefill": {
                f"{tokens} {before}": self._prefill(tokens, before)
                for tokens in _PREFILLED
                for before in self._before
            },
            "facade": self._facade(),
        }

    def _all_steps(self, *, together: bool) -> dict[str, list[float]]:
        return {
            " ".join(map(str, point)): _milliseconds(
                self._steps(point[0], point[1], request, together=together)
            )
            for point, request in self._requests.items()
        }

    def _steps(self, requests: int, lanes: int, request: Request, *, together: bool) -> list[float]:
        """Seconds of each step in which every request decodes so many lanes, and nothing is prefilled.

        With ``together`` steps run together where that is possible, and each counts with its share of their time.
        """
        engine = self._engines[requests]
        engine.config = replace(engine.config, multi_step=together)
        for number in range(requests):
            engine.submit(request.replace(request_id=str(number)))
        seconds, before = [], engine.num_steps
        for number, (events, spent) in enumerate(timed_steps(engine)):
            steps, before = engine.num_steps - before, engine.num_steps
            emitted = Counter((e.request_id, e.thread) for e in events if isinstance(e, TokenEvent))
            # A main thread that waits for its chunks is no lane.
            whole = len(emitted) == requests * lanes and (lanes == 1 or all(thread for _, thread in emitted))
            is_prefilled = number >= requests  # one prompt a step
            if is_prefilled and whole and set(emitted.values()) == {steps}:
                seconds.append((steps, spent / steps))
        most = max(steps for steps, _ in seconds)
        engine.config = replace(engine.config, multi_step=False)
        return [spent for steps, spent in seconds if steps == most]

    def _prefill(self, tokens: int, before: int) -> float:
        engine = self._engines[1]
        engine.config = replace(engine.config, prefill_chunk=tokens)
        prompt = [self._filler] * (before + tokens)
        engine.submit(Request(prompt_ids=prompt, limits=UNBOUNDED, forced=[self._codec.eos_id]))
        chunks = -(-tokens // engine.runner.prefilled_at_once(tokens))
        spent = sum([seconds for _, seconds in timed_steps(engine)][-chunks:])
        engine.config = replace(engine.config, prefill_chunk=engine.config.slot_tokens)
        return round(1e3 * spent, 4)

    def _facade(self) -> list[float]:
        engine, forced = self._engines[1], [self._filler] * _FACADE_TOKENS + [self._codec.eos_id]
        request = Request(prompt_ids=[self._filler] * 8, limits=UNBOUNDED, forced=forced)
        engine.submit(request)
        bare = sum(seconds for _, seconds in timed_steps(engine))
        return [
            round(1e3 * s / len(forced), 4) for s in (asyncio.run(_through_facade(engine, request)), bare)
        ]


async def _through_facade(engine: Engine, request: Request) -> float:
    """Return the seconds of a request whose events are read on an event loop."""
    facade = AsyncEngine(engine)
    await facade.start()
    begun = time.perf_counter()
    events: list[Event] = [event async for event in facade.stream(request)]
    spent = time.perf_counter() - begun
    assert isinstance(events[-1], DoneEvent)
    await facade.stop()
    return spent


def calibration_of(rounds: Sequence[Record], *, fastest: bool = False, **about: Any) -> Calibration:
    """The calibration that follows from rounds: the median over rounds of each round's median.

    With ``fastest`` it is the least of all, for a machine that others use at the same time. ``about`` says what was
    measured (model, dtype, device, threads, machine).
    """
    over: Callable[[Iterable[float]], float] = min if fastest else statistics.median
    steps, together = (
        _over_rounds([{k: ms[fastest] for k, ms in entry[kind].items()} for entry in rounds], over)
        for kind in ("steps", "together")
    )
    prefill = _over_rounds([entry["prefill"] for entry in rounds], over)
    added = statistics.median(through - bare for through, bare in (entry["facade"] for entry in rounds))
    if fastest:
        about["note"] = "Fastest steps of a machine that was busy."
    return Calibration(
        steps=tuple(
            StepPoint(
                requests,
                lanes,
                cached,
                seconds=round(ms / 1e3, 7),
                together_s=round(together[requests, lanes, cached] / 1e3, 7) if together else None,
            )
            for (requests, lanes, cached), ms in steps.items()
        ),
        prefill=tuple(
            PrefillPoint(tokens, before + tokens, round(ms / 1e3, 7))
            for (tokens, before), ms in prefill.items()
        ),
        overhead_s=round(max(0.0, added) / 1e3, 7),
        **about,
    )


def calibration_table(calibration: Calibration) -> str:
    """Milliseconds a step, alone and together: a row for each number of requests and of cached tokens, a column for
    each of lanes."""
    lanes = sorted({point.lanes for point in calibration.steps})
    rows = sorted({(point.cache_tokens, point.requests) for point in calibration.steps})
    by_point = {(p.cache_tokens, p.requests, p.lanes): p for p in calibration.steps}
    return markdown(
        ["cached tokens", "requests", *(f"{count} lanes" for count in lanes)],
        [[*row, *(_told(by_point[*row, count]) for count in lanes)] for row in rows],
    )


def _told(point: StepPoint) -> str:
    together = "" if point.together_s is None else f"; {1e3 * point.together_s:.2f}"
    return f"{1e3 * point.seconds:.2f}{together}"


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [round(1e3 * statistics.median(seconds), 4), round(1e3 * min(seconds), 4)]


def _over_rounds(
    rounds: Sequence[Record], over: Callable[[Iterable[float]], float]
) -> dict[tuple[int, ...], float]:
    return {tuple(map(int, key.split())): round(over(entry[key] for entry in rounds), 4) for key in rounds[0]}
