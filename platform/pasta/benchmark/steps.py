"""Measures the cost of a step with several lanes, compared with one lane at the same cache length."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.metrics import Metric
from pasta.engine import Engine, EngineConfig, Event, LoadedModel, Request, TokenEvent
from pasta.errors import UserError
from pasta.interpreter import UNBOUNDED
from pasta.lang import Codec
from pasta.markdown import markdown
from pasta.stages.records import Record

_ESTIMATE = 10  # chunks outgrow it; positions may overlap, and stay within the context


def timed_steps(engine: Engine) -> Iterator[tuple[Sequence[Event], float]]:
    """Step ``engine`` until it has no work left; yields the events of each step and the seconds that it took."""
    while engine.has_work:
        begun = time.perf_counter()
        events = engine.step()
        yield events, time.perf_counter() - begun


def slot_for(num_tokens: int) -> int:
    """The size of a slot that has room for so many tokens and the one that the engine keeps: a multiple of 256."""
    return -(-(num_tokens + 1) // 256) * 256


def measure_rounds(part: MeasuredPart[int], measure: Callable[[], Record]) -> None:
    """Measure the missing rounds, after a warm-up round."""
    measure()
    for number in part.missing:
        part.add(number, measure())


class LaneBench:
    """Times single steps of one engine in which a given number of lanes decodes.

    The cache holds ``cache_tokens`` ± 3/16 tokens in every step that is counted. Raises ``UserError`` if so
    many lanes cannot be forked before the cache is that long, or the model has too few positions for it.
    """

    def __init__(self, loaded: LoadedModel, lanes: Sequence[int], cache_tokens: int) -> None:
        self.lanes, self.cache_tokens = tuple(lanes), cache_tokens
        self._half = 3 * cache_tokens // 16
        self._requests = {
            count: lane_request(loaded.codec, count, cache_tokens, self._half) for count in lanes
        }
        longest = longest_within(loaded, self._requests.values(), cache_tokens)
        self.engine = Engine(
            loaded,
            EngineConfig(
                num_slots=1, slot_tokens=slot_for(longest), reuse_prefixes=False, drafts=0, multi_step=False
            ),
        )

    def round(self) -> Record:
        """One document for each number of lanes: ``{"1": milliseconds of each step, …}``."""
        return {str(count): [round(1e3 * s, 4) for s in self._steps(count)] for count in self.lanes}

    def _steps(self, lanes: int) -> list[float]:
        self.engine.submit(self._requests[lanes])
        seconds: list[float] = []
        first, last = self.cache_tokens - self._half, self.cache_tokens + self._half
        held = self.engine.runner.num_tokens[0]
        for events, spent in timed_steps(self.engine):
            threads = {event.thread for event in events if isinstance(event, TokenEvent)}
            if len(threads) == lanes and (lanes == 1 or 0 not in threads) and first <= held < last:
                seconds.append(spent)
            held = self.engine.runner.num_tokens[0]
        return seconds


def longest_within(loaded: LoadedModel, requests: Iterable[Request], cache_tokens: int) -> int:
    """The tokens of the longest of these requests, which time steps at ``cache_tokens``. Raises ``UserError`` if the
    model has not as many positions, and one for the engine."""
    longest = max(len(request.prompt_ids) + len(request.forced or ()) for request in requests)
    if longest >= loaded.max_positions:
        raise UserError(
            f"--cache-tokens {cache_tokens}: steps are timed in texts of up to {longest} tokens; expected a smaller "
            f"number, for the model has {loaded.max_positions} positions"
        )
    return longest


def lane_ratio(rounds: Sequence[Record], lanes: int) -> float:
    """Time of a step with ``lanes`` ÷ with one: the median over rounds of the ratio of the median steps."""
    return statistics.median(
        statistics.median(entry[str(lanes)]) / statistics.median(entry["1"]) for entry in rounds
    )


def lane_metrics(
    rounds: Sequence[Record], lanes: Sequence[int], name: str, label: str, target: float
) -> list[Metric]:
    """The ratio for 8 lanes against its target, and for every other number of lanes without one."""
    metrics = []
    for count in lanes:
        if count == 1:
            continue
        least = min(min(entry[str(count)]) for entry in rounds) / min(min(entry["1"]) for entry in rounds)
        metrics.append(
            Metric(
                f"step.{name}.{count}",
                f"step with {count} lanes ÷ with 1, {label}",
                lane_ratio(rounds, count),
                target if count == 8 else None,
                "at most",
                count=len(rounds),
                note=f"median of {len(rounds)} rounds; fastest steps {least:.3f}",
            )
        )
    return metrics


def lane_table(rounds: Sequence[Record], lanes: Sequence[int]) -> str:
    """Milliseconds a step, median and least, by number of lanes."""
    rows = []
    for count in lanes:
        spent = [ms for entry in rounds for ms in entry[str(count)]]
        rows.append([count, f"{statistics.median(spent):.2f}", f"{min(spent):.2f}", len(spent)])
    return markdown(["lanes", "median ms a step", "least ms", "steps"], rows)


def lane_request(codec: Codec, lanes: int, cache_tokens: int, half: int, extra: int = 0) -> Request:
    """Make a document whose ``lanes`` chunks all decode while the cache grows through the window, and ``extra`` steps
    more.

    Raises ``UserError`` if so many lanes cannot be forked before the cache is that long.
    """
    filler = codec.encode_text(" a")[0]
    if lanes == 1:
        prompt = cache_tokens - half - 1
        forced = [filler] * (2 * half + 2 + extra) + [codec.eos_id]
        return Request(prompt_ids=[filler] * prompt, limits=UNBOUNDED, forced=forced)
    control = codec.control
    promise = codec.encode_promise("a", _ESTIMATE)
    # Fed before the last chunk's first step: the tags, <async> of each, and what earlier chunks have decoded.
    before = lanes * (len(promise) + 1) + len(promise) * lanes * (lanes - 1) // 2 + 1
    prompt = cache_tokens - half - before
    if prompt < 1:
        raise UserError(
            f"--cache-tokens {cache_tokens}: {lanes} lanes are live only after {before} tokens; "
            f"expected at least {-(-(before + 1) * 16 // 13)} for so many lanes"
        )
    length = len(promise) * (lanes - 1) + 2 * half // lanes + 4 + extra
    chunk = [*promise, control.async_open, *[filler] * length, control.async_close]
    return Request(
        prompt_ids=[filler] * prompt, limits=UNBOUNDED, forced=[*chunk * lanes, control.sync, codec.eos_id]
    )
