"""Arrival times of requests: a Poisson stream, users with think time, or the times of a trace."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pasta.bounds import check_at_least, check_at_most, check_not_negative, check_positive

#: The most requests of a study: each one is an event, and waiting ones are kept in memory. Beside longer times the
#: clock would lose what an answer takes.
MOST: dict[str, float] = {"rate": 10_000, "users": 1_000_000, "think_s": 1_000_000}
#: The same for the times between requests: without bounds they would be infinite.
LEAST: dict[str, float] = {"rate": 1e-6, "speed": 1e-6}
Kind = Literal["poisson", "users", "trace"]
_NEEDED: dict[str, tuple[str, ...]] = {"poisson": ("rate",), "users": ("users", "think_s"), "trace": ()}


@dataclass(frozen=True, slots=True)
class LoadSection:
    """``poisson``: ``rate`` requests a second (open loop). ``users``: that many users, each of whom sends the next
    request an exponential think time of mean ``think_s`` (0: none) after the last answer (closed loop).
    ``trace``: each line of the trace at its ``arrival_s``, divided by ``speed``."""

    kind: Kind
    rate: float | None = None
    users: int | None = None
    think_s: float | None = None
    speed: float | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "users", "think_s"):
            if (name in _NEEDED[self.kind]) != (getattr(self, name) is not None):
                raise ValueError(f"{name}: expected with kind {_kind_of(name)}, and only then")
        if self.speed is not None and self.kind != "trace":
            raise ValueError("speed: expected with kind trace, and only then")
        check_positive(self, "rate", "users", "speed")
        check_not_negative(self, "think_s")
        check_at_most(self, **MOST)
        check_at_least(self, **LEAST)

    @property
    def swept(self) -> str:
        """The key that a sweep varies."""
        return {"poisson": "rate", "users": "users", "trace": "speed"}[self.kind]


class Arrivals(Protocol):
    """Tells the simulation when requests come. Times are seconds of its clock."""

    def first(self) -> Sequence[float]:
        """Return the arrival times that are known at the start."""
        ...

    def after_arrival(self, now: float) -> float | None:
        """Return the next arrival time after an arrival, if that determines it."""
        return None

    def after_end(self, now: float) -> float | None:
        """Return the next arrival time after the end of an answer, if that determines it."""
        return None


class Poisson(Arrivals):
    """An open stream: exponential gaps of mean 1 / rate. Arrivals do not depend on answers."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate, self._random = rate, random.Random(f"arrivals:{seed}")

    def first(self) -> Sequence[float]:
        """One gap after the beginning."""
        return [self._random.expovariate(self._rate)]

    def after_arrival(self, now: float) -> float | None:
        """One gap later."""
        return now + self._random.expovariate(self._rate)


class Users(Arrivals):
    """A closed loop. Users also think before their first request, so that the load is steady from the start.

    Together they send ``most`` requests, if it is given.
    """

    def __init__(self, users: int, think_s: float, seed: int, most: int | None = None) -> None:
        self._users, self._think_s = users, think_s
        self._left: float = float("inf") if most is None else most
        self._random = random.Random(f"arrivals:{seed}")

    def first(self) -> Sequence[float]:
        """Each user's first request."""
        first = int(min(self._users, self._left))
        self._left -= first
        return [self._think() for _ in range(first)]

    def after_end(self, now: float) -> float | None:
        """The user's next request."""
        if self._left <= 0:
            return None
        self._left -= 1
        return now + self._think()

    def _think(self) -> float:
        return self._random.expovariate(1.0 / self._think_s) if self._think_s else 0.0


class Replayed(Arrivals):
    """Given times, from the first one on."""

    def __init__(self, arrivals_s: Sequence[float], speed: float = 1.0) -> None:
        begun = min(arrivals_s, default=0.0)
        self._arrivals_s = [(arrival - begun) / speed for arrival in arrivals_s]

    def first(self) -> Sequence[float]:
        """All of them."""
        return self._arrivals_s


def make_arrivals(load: LoadSection, seed: int, arrivals_s: Sequence[float] = ()) -> Arrivals:
    """The arrivals of a section; ``arrivals_s`` are the trace's."""
    if load.rate is not None:
        return Poisson(load.rate, seed)
    if load.users is not None and load.think_s is not None:
        return Users(load.users, load.think_s, seed)
    return Replayed(arrivals_s, load.speed or 1.0)


def _kind_of(name: str) -> str:
    return next(kind for kind, names in _NEEDED.items() if name in names)
