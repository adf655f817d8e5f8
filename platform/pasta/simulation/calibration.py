"""Measured costs of engine steps: the file that ``jobs/benchmark.py calibrate`` writes, and interpolation in it.

Standard library only: the benchmark runs where there is nothing but torch and transformers.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pasta.bounds import check_at_most, check_not_negative, check_positive, check_within

#: The seconds that a step may take. Beside longer ones the clock would lose what else takes time; of shorter ones it
#: would lose the answers' own time, by which speedups divide.
LEAST_STEP_S, MOST_STEP_S = 1e-9, 1_000_000
#: Seconds at a point.
_Values = dict[tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step in which each of ``requests`` decodes ``lanes`` lanes, attending to about ``cache_tokens`` tokens:
    ``seconds`` alone, ``together_s`` as one of several that run together (``None``: it was not measured)."""

    requests: int
    lanes: int
    cache_tokens: int
    seconds: float
    together_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "requests", "lanes", "cache_tokens")
        check_within(self, seconds=(LEAST_STEP_S, MOST_STEP_S), together_s=(LEAST_STEP_S, MOST_STEP_S))


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """A step that feeds ``tokens`` of a prompt and nothing else, after which the cache holds ``cache_tokens``."""

    tokens: int
    cache_tokens: int
    seconds: float

    def __post_init__(self) -> None:
        check_positive(self, "tokens", "cache_tokens")
        check_within(self, seconds=(LEAST_STEP_S, MOST_STEP_S))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What an engine's steps cost on a machine. Raises ``ValueError`` if points are missing or given twice.

    ``steps`` hold every combination of their numbers of requests, lanes and cached tokens, with ``together_s`` in all
    or in none; ``prefill`` every one of their tokens, each at the same number of cached tokens beyond them.
    ``overhead_s`` is what the service's façade adds to each step, or to several together. Costs are interpolated
    linearly between points, extrapolated linearly beyond the last two, and constant below the first.
    """

    model: str
    dtype: str
    device: str
    threads: int
    steps: tuple[StepPoint, ...]
    prefill: tuple[PrefillPoint, ...]
    overhead_s: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        check_not_negative(self, "overhead_s")
        check_at_most(self, overhead_s=MOST_STEP_S)
        MeasuredCosts(self)


class MeasuredCosts:
    """Returns the seconds of an engine's work, from a calibration."""

    def __init__(self, calibration: Calibration) -> None:
        steps: _Values = {(p.requests, p.lanes, p.cache_tokens): p.seconds for p in calibration.steps}
        prefill: _Values = {(p.tokens, p.cache_tokens - p.tokens): p.seconds for p in calibration.prefill}
        self._grid = _Grid(steps, len(calibration.steps), "steps")
        together: _Values = {
            (p.requests, p.lanes, p.cache_tokens): p.together_s
            for p in calibration.steps
            if p.together_s is not None
        }
        if together and len(together) < len(steps):
            raise ValueError(
                f"steps: together_s in {len(together)} of {len(steps)}, expected in all or in none"
            )
        self._together = _Grid(together, len(together), "steps with together_s") if together else None
        self._prefill = _Grid(prefill, len(calibration.prefill), "prefill")

    def lanes_s(self, requests: int, lanes: float, cache_tokens: int) -> float:
        """A step in which neighbouring slots each decode as many lanes (a forward is padded to the most of them),
        attending to as many cached tokens each."""
        return self._grid.at((requests, lanes, cache_tokens))

    def together_s(self, requests: int, lanes: float, cache_tokens: int) -> float | None:
        """Such a step as one of several that run together; ``None`` where steps do not."""
        return None if self._together is None else self._together.at((requests, lanes, cache_tokens))

    def prefill_s(self, tokens: int, cache_tokens: int) -> float:
        """The forward of a chunk of a prompt, or of an absorbed chunk: so many tokens, after which the cache of their
        slot holds ``cache_tokens``."""
        return self._prefill.at((tokens, cache_tokens - tokens))

    def covers(self, requests: int, lanes: float, cache_tokens: int) -> bool:
        """Whether such a step lies within what was measured: every number is at most the largest one there."""
        return self._grid.covers((requests, lanes, cache_tokens))


class _Grid:
    """Values at all combinations of some numbers, linear in between. Raises ``ValueError`` if one is missing."""

    def __init__(self, values: _Values, count: int, name: str) -> None:
        if not values:
            raise ValueError(f"{name}: none is given, expected at least one point")
        self._values = values
        self._axes = [sorted(set(axis)) for axis in zip(*values, strict=True)]
        missing = [point for point in product(*self._axes) if point not in values]
        if missing:
            raise ValueError(f"{name}: no point at {missing[0]}, expected one at every combination")
        if count != len(values):
            raise ValueError(f"{name}: {count - len(values)} points are given twice")

    def at(self, point: Sequence[float]) -> float:
        """Interpolate at a point; never less than the least measured value."""
        return max(self._between((), point), min(self._values.values()))

    def covers(self, point: Sequence[float]) -> bool:
        """Whether the point lies within the last value of every axis."""
        return all(value <= axis[-1] for value, axis in zip(point, self._axes, strict=True))

    def _between(self, fixed: tuple[int, ...], point: Sequence[float]) -> float:
        if len(fixed) == len(self._axes):
            return self._values[fixed]
        axis: list[int] = self._axes[len(fixed)]
        value = point[len(fixed)]
        if len(axis) == 1 or value <= axis[0]:
            return self._between((*fixed, axis[0]), point)
        above = min(bisect_right(axis, value), len(axis) - 1)
        low, high = axis[above - 1], axis[above]
        at_low, at_high = self._between((*fixed, low), point), self._between((*fixed, high), point)
        slope: float = (at_high - at_low) / (high - low)
        if value > high:  # noise between the last two points must not make more work cheaper
            return at_high + max(0.0, slope) * (value - high)
        return at_low + slope * (value - low)
