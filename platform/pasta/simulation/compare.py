"""Compares a measured load with its simulation, metric by metric."""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.simulation.metrics import Distribution, RunMetrics
from pasta.simulation.trace import number_of, read_objects

#: Metrics that are compared, and the tolerance of each.
COMPARED = ("ttft_s.p50", "ttft_s.p95", "total_s.mean", "total_s.p50", "total_s.p95", "requests_s")
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Measured:
    """A load as its clients saw it: seconds of each answer, and answers a second (``None`` if it is not known when they
    were asked for). ``has_answers``: its lines hold the answers too, and so are a trace."""

    ttft_s: Distribution
    total_s: Distribution
    requests_s: float | None
    has_answers: bool = False


@dataclass(frozen=True, slots=True)
class Deviation:
    """One metric: ``ratio`` is the simulated over the measured value. ``fitted`` metrics agree by construction."""

    metric: str
    measured: float
    simulated: float
    tolerance: float
    fitted: bool = False

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured if self.measured else float("inf")

    @property
    def within(self) -> bool:
        """Whether the simulation is within the tolerance."""
        return abs(self.ratio - 1) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "figure": self.metric,
            "measured": self.measured,
            "simulated": self.simulated,
            "ratio": self.ratio,
            "within": self.within,
            "fitted": self.fitted,
        }


def read_measured(path: Path, field: str = "annotated") -> Measured:
    """A measured load: JSON lines of ``ttft_s`` and ``total_s``, and ``arrival_s`` if it is known.

    Raises ``UserError`` with file and line of the first one without its seconds.
    """
    objects = read_objects(path)
    seconds: dict[str, list[float]] = {"ttft_s": [], "total_s": []}
    begun, ended = [], []
    for where, value in objects:
        for name, found in seconds.items():
            if (spent := number_of(value, name, where)) is None:
                raise UserError(f"{where}: no {name}, expected the seconds of a measured request")
            found.append(spent)
        if (arrival := number_of(value, "arrival_s", where)) is not None:
            begun.append(arrival)
            ended.append(arrival + seconds["total_s"][-1])
    lasted = max(ended, default=0.0) - min(begun, default=0.0)
    return Measured(
        Distribution.of(seconds["ttft_s"]),
        Distribution.of(seconds["total_s"]),
        len(objects) / lasted if len(begun) == len(objects) and lasted > 0 else None,
        has_answers=all(field in value or "answers" in value for _, value in objects),
    )


def deviations(
    measured: Measured,
    metrics: RunMetrics,
    *,
    of: str = "",
    fitted: bool = False,
) -> list[Deviation]:
    """Compare every metric that both have; ``of`` is put before their names."""
    found = []
    for name in COMPARED:
        real, simulated = map(attrgetter(name), (measured, metrics))
        if real is not None and simulated is not None:
            found.append(Deviation(of + name, real, simulated, TOLERANCE, fitted))
    return found
