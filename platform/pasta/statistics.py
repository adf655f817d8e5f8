"""Groups, means, percentiles, histograms and bootstrap intervals. numpy is imported on first use: its import takes
long."""

import math
import random
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_RESAMPLES = 2000
#: Characters of a histogram's longest bar.
_BAR = 40
#: Fewer pairs show no difference, nor do fewer that differ, however many are equal. Five that all differ to one side do
#: so by chance in 2 of 2⁵ cases, more often than 95% intervals may err; six in 2 of 2⁶.
LEAST_PAIRS = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of ``count`` values with the ends of its 95% bootstrap interval. ``differing`` of the values are not 0 or,
    of ratios, not 1."""

    value: float
    low: float
    high: float
    count: int
    differing: int

    @property
    def has_enough_pairs(self) -> bool:
        """Whether there are pairs enough for the interval to tell a difference from none."""
        return self.count >= LEAST_PAIRS

    def excludes(self, none: float) -> bool:
        """Whether the interval excludes no difference, and pairs enough differ to say so. ``none`` is 0 or, of ratios,
        1."""
        return self.differing >= LEAST_PAIRS and not self.low <= none <= self.high


def grouped(items: Iterable[T], key: Callable[[T], K | None]) -> dict[K, list[T]]:
    """The items by their key, groups in the order in which they first occur. An item whose key is None is in none."""
    groups: dict[K, list[T]] = {}
    for item in items:
        if (found := key(item)) is not None:
            groups.setdefault(found, []).append(item)
    return groups


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, the one for ratios. ``values`` must be positive and at least one."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lies, linear between two of them. At least one value."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def histogram_lines(counts: Mapping[str, int], name_width: int, count_width: int) -> list[str]:
    """A line with a bar for each range from the first to the last that holds something, of which there is one."""
    used = [index for index, count in enumerate(counts.values()) if count]
    most = max(counts.values())
    return [
        f"  {name:<{name_width}}{count:>{count_width}} {'█' * math.ceil(_BAR * count / most)}".rstrip()
        for name, count in list(counts.items())[used[0] : used[-1] + 1]
    ]


def bootstrap(values: Sequence[float]) -> Estimate:
    """The geometric mean of ``values`` with its percentile interval; the same values have the same interval."""
    low, high = _interval([math.log(value) for value in values])
    differing = sum(value != 1 for value in values)
    return Estimate(geometric_mean(values), math.exp(low), math.exp(high), len(values), differing)


def bootstrap_mean(values: Sequence[float]) -> Estimate:
    """The arithmetic mean of ``values`` with its percentile interval.

    Given the differences of pairs, the interval is the paired one: a prompt is drawn with both of its values.
    """
    low, high = _interval(values)
    return Estimate(statistics.fmean(values), low, high, len(values), sum(value != 0 for value in values))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    import numpy as np

    means = np.sort(np.asarray(values)[resamples(len(values))].mean(axis=1))
    low, high = (float(means[int(share * _RESAMPLES)]) for share in (0.025, 0.975))
    return low, high


@lru_cache(maxsize=32)
def resamples(count: int) -> "npt.NDArray[np.int32]":
    """The indices that each resample draws: [resamples, count]. Cached: most metrics have the same number of
    prompts."""
    import numpy as np

    rng = random.Random("bootstrap:0")
    return np.array([rng.choices(range(count), k=count) for _ in range(_RESAMPLES)], dtype=np.int32)


def ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    """Sum of the first numbers over the sum of the second ones; 0 when there is nothing to divide by."""
    over = sum(second for _, second in pairs)
    return sum(first for first, _ in pairs) / over if over else 0.0
