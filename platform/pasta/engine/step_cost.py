"""What a forward costs by its number of rows, what drafts are worth, and how fast steps without them are that run
together, as the engine measures it while it decodes."""

from dataclasses import dataclass, field

#: Weight of the older measurements when a new step or draft is measured.
DECAY = 0.98
#: A measurement counts for at most so many times the last one with as many rows or lanes.
_GROWTH = 1.05
#: The weight of what something saved before, and the times without it after which it is tried again.
_WORTH_DECAY, _TIMES_WITHOUT = 0.9, 64


def least_lately(costs: dict[int, float], count: int, spent: float) -> float:
    """Note in ``costs`` that so many rows or lanes took ``spent`` seconds now; returns what counts of it. Other work on
    the machine only adds to a time."""
    costs[count] = seconds = min(spent, _GROWTH * costs.get(count, float("inf")))
    return seconds


@dataclass(slots=True)
class StepCost:
    """What a forward costs by its number of rows: a line fitted to measurements, of which older ones weigh less.

    Other work, and what a forward does for the first time, only adds to its time. So the first measurement of each
    number of rows does not count, and no other counts for much more than the last one of as many rows.
    """

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0
    last: dict[int, float] = field(default_factory=dict)

    def add(self, rows: int, seconds: float) -> None:
        """A forward of ``rows`` rows took so long."""
        known = rows in self.last
        seconds = least_lately(self.last, rows, seconds)
        if not known:
            return
        for name, value in (
            ("weight", 1.0),
            ("rows", rows),
            ("seconds", seconds),
            ("rows_rows", rows * rows),
            ("rows_seconds", rows * seconds),
        ):
            setattr(self, name, DECAY * getattr(self, name) + value)

    def at(self, rows: int) -> float:
        """Return the seconds of a forward of ``rows`` rows."""
        fixed, row = self.line()
        return fixed + row * rows

    @property
    def row_s(self) -> float:
        """The seconds that a row adds to a forward; 0 before any was measured."""
        return self.line()[1] if self.weight else 0.0

    def line(self) -> tuple[float, float]:
        """Return the seconds of a forward and of each of its rows; before any was measured, in units of a forward."""
        if not self.weight:
            return 1.0, 0.05
        rows_mean, mean = self.rows / self.weight, self.seconds / self.weight
        spread = self.rows_rows / self.weight - rows_mean**2
        # Weighted as if forwards of nearly equal size had cost a twentieth more for each row.
        prior = 0.05 * mean / max(rows_mean, 1.0)
        together = self.rows_seconds / self.weight - rows_mean * mean
        slope = (together + 0.1 * prior) / (spread + 0.1)
        slope = min(max(slope, 0.0), mean / rows_mean)
        return mean - slope * rows_mean, slope


@dataclass(slots=True)
class Worth:
    """What something has saved lately, as a share of a step's time: it is tried as long as that is not negative. Also
    every so many times in any case, since only what is tried can show that it pays again."""

    saved: float = 1.0
    without: int = 0

    def tries(self) -> bool:
        """Whether to try it now."""
        tried = self.tried_next
        self.without = 0 if tried else self.without + 1
        return tried

    @property
    def tried_next(self) -> bool:
        """Whether it will be tried the next time."""
        return self.saved >= 0 or self.without + 1 == _TIMES_WITHOUT

    def learn(self, saved: float) -> None:
        """It has saved this share now, or cost it."""
        self.saved += (1 - _WORTH_DECAY) * (min(max(saved, -1.0), 1.0) - self.saved)


#: Measurements of each way to run steps before one is preferred; after how many times as long as it takes the slower
#: one is tried again; and the weight of the older measurements.
_AT_FIRST, _TRIED_AFTER, _PACE_DECAY = 4, 50, 0.9


@dataclass(slots=True)
class Pace:
    """Seconds a token: a mean over measurements, of which older ones weigh less. The first, which does things for the
    first time, does not count, and none counts for more than twice what was to be expected."""

    count: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    last_s: float = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        self.count += 1
        if self.count == 1 or not tokens:
            return
        if self.tokens:
            seconds = min(seconds, 2 * tokens * self.seconds / self.tokens)
        self.tokens = _PACE_DECAY * self.tokens + tokens
        self.seconds = _PACE_DECAY * self.seconds + seconds
        self.last_s = seconds


@dataclass(slots=True)
class Faster:
    """Which of two ways to run steps is the faster one: plain steps together, or one at a time with drafts."""

    together: Pace = field(default_factory=Pace)
    drafted: Pace = field(default_factory=Pace)
    #: Seconds since the slower way was tried.
    since_s: float = 0.0

    def is_together(self) -> bool:
        """Whether to run steps together now."""
        if (slower := self._slower()) is None:
            return self.drafted.count >= _AT_FIRST and self.drafted.tokens > 0
        is_due = self.since_s >= _TRIED_AFTER * slower.last_s
        return (slower is self.drafted) != is_due

    def learn(self, tokens: int, seconds: float, *, together: bool) -> None:
        """One of the ways has made so many tokens in so long."""
        slower, way = self._slower(), self.together if together else self.drafted
        way.learn(tokens, seconds)
        self.since_s = 0.0 if way is slower else self.since_s + seconds

    def _slower(self) -> Pace | None:
        """The slower way, once both are known."""
        both = self.drafted, self.together
        if any(way.count < _AT_FIRST or not way.tokens for way in both):
            return None
        return max(both, key=lambda way: way.seconds / way.tokens)
