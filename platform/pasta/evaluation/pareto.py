"""Which methods dominate which in speed and quality, on the prompts that both of them answered.

A method dominates another if it is at least as fast and at least as good, and one of both more. That is a statement
about point estimates; ``is_clear`` tells whether the 95% intervals bear it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pasta.evaluation.outcomes import Outcome
from pasta.evaluation.statistics import Estimate, bootstrap, bootstrap_mean, geometric_mean

_EQUAL = 1e-9  # a difference that is rounding


@dataclass(frozen=True, slots=True)
class Domination:
    """``better`` dominates ``worse``: it is ``speed_ratio`` times as fast (1 or more) and ``quality_difference`` better
    (0 or more), over the prompts that both have a speed, or a quality, of. One prompt has no interval and clears no
    doubt."""

    better: str
    worse: str
    speed_ratio: Estimate
    quality_difference: Estimate

    @property
    def is_no_slower(self) -> bool:
        """Whether the interval leaves no doubt that it is at least as fast."""
        return self.speed_ratio.count > 1 and self.speed_ratio.low >= 1.0 - _EQUAL

    @property
    def is_no_worse(self) -> bool:
        """Whether the interval leaves no doubt that its quality is at least as high."""
        return self.quality_difference.count > 1 and self.quality_difference.low >= -_EQUAL

    @property
    def is_clear(self) -> bool:
        """Whether the intervals leave no doubt that it dominates."""
        more = self.speed_ratio.low > 1.0 + _EQUAL or self.quality_difference.low > _EQUAL
        return self.is_no_slower and self.is_no_worse and more


@dataclass(frozen=True, slots=True)
class LineComparison:
    """Two lines of methods: ``dominated`` of the ``other`` line's points are dominated by one of this ``line``'s."""

    line: str
    other: str
    dominated: tuple[str, ...]
    num_points: int


def dominations(outcomes: Mapping[str, Sequence[Outcome]], speed_name: str) -> tuple[Domination, ...]:
    """All pairs of which one dominates the other, in the order of ``outcomes``."""
    names = list(outcomes)
    found = []
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            pairs = _pairs(outcomes[first], outcomes[second])
            speeds = [s for a, b in pairs if (s := _speed_ratio(a, b, speed_name)) is not None]
            differences = [
                a.quality - b.quality for a, b in pairs if a.quality is not None and b.quality is not None
            ]
            if not speeds or not differences:
                continue
            speed, quality = bootstrap(speeds), bootstrap_mean(differences)
            faster, better = _sign(speed.value - 1.0), _sign(quality.value)
            if faster + better > 0 and min(faster, better) >= 0:
                found.append(Domination(first, second, speed, quality))
            elif faster + better < 0 and max(faster, better) <= 0:
                found.append(Domination(second, first, _inverse(speed), _negative(quality)))
    return tuple(found)


def on_front(
    outcomes: Mapping[str, Sequence[Outcome]], dominated: Sequence[Domination], speed_name: str
) -> tuple[str, ...]:
    """The methods that none dominates, the slowest first."""
    worse = {entry.worse for entry in dominated}

    def speed(name: str) -> float:
        return geometric_mean([s for o in outcomes[name] if (s := _speed(o, speed_name)) is not None])

    return tuple(sorted((name for name in outcomes if name not in worse), key=speed))


def compare_lines(
    lines: Mapping[str, str | None], dominated: Sequence[Domination]
) -> tuple[LineComparison, ...]:
    """Every line against every other; ``lines`` gives each method's."""
    members: dict[str, list[str]] = {}
    for name, line in lines.items():
        if line is not None:
            members.setdefault(line, []).append(name)
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


def _pairs(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    others = {outcome.key: outcome for outcome in second}
    return [(outcome, others[outcome.key]) for outcome in first if outcome.key in others]


def _speed(outcome: Outcome, speed_name: str) -> float | None:
    return outcome.realised if speed_name == "realised" else outcome.theoretical


def _speed_ratio(first: Outcome, second: Outcome, speed_name: str) -> float | None:
    a, b = _speed(first, speed_name), _speed(second, speed_name)
    return a / b if a is not None and b is not None else None


def _sign(value: float) -> int:
    return 0 if abs(value) < _EQUAL else 1 if value > 0 else -1


def _inverse(estimate: Estimate) -> Estimate:
    return Estimate(1 / estimate.value, 1 / estimate.high, 1 / estimate.low, estimate.count)


def _negative(estimate: Estimate) -> Estimate:
    return Estimate(-estimate.value, -estimate.high, -estimate.low, estimate.count)
