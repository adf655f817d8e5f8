"""Finds which methods dominate which in speed and quality.

A method dominates another if it is at least as fast and at least as good, and better in one of
both. This compares the means that tables and figures show. ``Domination.is_clear`` says whether the prompts that both
methods have in common support it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pasta.evaluation.results.outcomes import Outcome
from pasta.statistics import Estimate, bootstrap, bootstrap_mean, geometric_mean, grouped

_EQUAL = 1e-9  # smaller differences are rounding errors


@dataclass(frozen=True, slots=True)
class Domination:
    """``better`` dominates ``worse``. On the prompts that both have a speed, or a quality, of, it is ``speed_ratio``
    times as fast and ``quality_difference`` better: None without such a prompt. Few prompts make nothing clear."""

    better: str
    worse: str
    speed_ratio: Estimate | None
    quality_difference: Estimate | None

    @property
    def is_no_slower(self) -> bool:
        """Whether the whole interval says that it is at least as fast."""
        return _low(self.speed_ratio) >= 1.0 - _EQUAL

    @property
    def is_no_worse(self) -> bool:
        """Whether the whole interval says that its quality is at least as high."""
        return _low(self.quality_difference) >= -_EQUAL

    @property
    def is_clear(self) -> bool:
        """Whether both whole intervals say that it dominates."""
        more = _is_above(self.speed_ratio, 1.0) or _is_above(self.quality_difference, 0.0)
        return self.is_no_slower and self.is_no_worse and more


@dataclass(frozen=True, slots=True)
class LineComparison:
    """Two lines of methods: ``dominated`` of the ``other`` line's points are dominated by one of this ``line``'s."""

    line: str
    other: str
    dominated: tuple[str, ...]
    num_points: int


def dominations(outcomes: Mapping[str, Sequence[Outcome]], speed_name: str) -> tuple[Domination, ...]:
    """All pairs of which one dominates the other, in the order of ``outcomes``: methods with a speed and a quality."""
    means = {
        name: (_mean_speed(members, speed_name), fmean(o.quality for o in members if o.quality is not None))
        for name, members in outcomes.items()
    }
    return tuple(
        _domination(better, worse, outcomes, speed_name)
        for worse in outcomes
        for better in outcomes
        if _is_dominated(means[worse], means[better])
    )


def on_front(
    outcomes: Mapping[str, Sequence[Outcome]], dominated: Sequence[Domination], speed_name: str
) -> tuple[str, ...]:
    """The methods that none dominates, the slowest first."""
    worse = {entry.worse for entry in dominated}
    return tuple(
        sorted(
            (name for name in outcomes if name not in worse),
            key=lambda name: _mean_speed(outcomes[name], speed_name),
        )
    )


def compare_lines(
    lines: Mapping[str, str | None], dominated: Sequence[Domination]
) -> tuple[LineComparison, ...]:
    """Every line against every other; ``lines`` gives each method's."""
    members = grouped(lines, lambda name: lines[name])
    return tuple(
        LineComparison(
            line,
            other,
            tuple(
                name
                for name in members[other]
                if any(entry.worse == name and lines[entry.better] == line for entry in dominated)
            ),
            len(members[other]),
        )
        for line in members
        for other in members
        if line != other
    )


def _is_dominated(point: tuple[float, float], by: tuple[float, float]) -> bool:
    """Points are (speed, quality)."""
    faster, better = _sign(by[0] - point[0]), _sign(by[1] - point[1])
    return min(faster, better) >= 0 and max(faster, better) > 0


def _domination(
    better: str, worse: str, outcomes: Mapping[str, Sequence[Outcome]], speed_name: str
) -> Domination:
    others = {outcome.key: outcome for outcome in outcomes[worse]}
    pairs = [(o, others[o.key]) for o in outcomes[better] if o.key in others]
    speeds = [
        a / b
        for first, second in pairs
        if (a := first.speed(speed_name)) is not None and (b := second.speed(speed_name)) is not None
    ]
    differences = [a.quality - b.quality for a, b in pairs if a.quality is not None and b.quality is not None]
    return Domination(
        better,
        worse,
        bootstrap(speeds) if speeds else None,
        bootstrap_mean(differences) if differences else None,
    )


def _mean_speed(outcomes: Sequence[Outcome], speed_name: str) -> float:
    return geometric_mean([s for o in outcomes if (s := o.speed(speed_name)) is not None])


def _sign(value: float) -> int:
    return 0 if abs(value) < _EQUAL else 1 if value > 0 else -1


def _low(estimate: Estimate | None) -> float:
    """The low end of an interval; without one, or of too few prompts, nothing is excluded."""
    return estimate.low if estimate is not None and estimate.has_enough_pairs else float("-inf")


def _is_above(estimate: Estimate | None, none: float) -> bool:
    return estimate is not None and estimate.low > none + _EQUAL and estimate.excludes(none)
