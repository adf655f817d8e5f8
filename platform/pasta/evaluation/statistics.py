"""Means of ratios, and how far to trust them."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of ``count`` values with the ends of its 95% bootstrap interval."""

    value: float
    low: float
    high: float
    count: int


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that is right for ratios. ``values`` must be positive and at least one."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def bootstrap(values: Sequence[float], seed: int = 0) -> Estimate:
    """The geometric mean of ``values`` with its percentile interval; the same seed gives the same interval."""
    rng = random.Random(f"bootstrap:{seed}")
    logs = [math.log(value) for value in values]
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(_RESAMPLES))
    low, high = (math.exp(means[int(share * _RESAMPLES)]) for share in (0.025, 0.975))
    return Estimate(geometric_mean(values), low, high, len(values))


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    """Sum of the first numbers over the sum of the second ones; 0 when there is nothing to divide by."""
    over = sum(second for _, second in pairs)
    return sum(first for first, _ in pairs) / over if over else 0.0
