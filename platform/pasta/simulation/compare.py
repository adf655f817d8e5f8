"""A measured load against its simulation: how far apart, figure by figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pasta.errors import UserError
from pasta.simulation.figures import Figures, Spread
from pasta.simulation.trace import Traced

#: Figures that are compared, and how near a simulation should come.
COMPARED = ("ttft_s.p50", "ttft_s.p95", "total_s.mean", "total_s.p50", "total_s.p95", "requests_s")
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Measured:
    """What clients saw of a load: seconds of each answer, and answers a second (``None`` if it is not known when they
    were asked for)."""

    ttft_s: Spread
    total_s: Spread
    requests_s: float | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """One figure: ``ratio`` is the simulated over the measured value."""

    figure: str
    measured: float
    simulated: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured if self.measured else float("inf")

    @property
    def within(self) -> bool:
        """Whether the simulation is as near as it should be."""
        return abs(self.ratio - 1) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "figure": self.figure,
            "measured": self.measured,
            "simulated": self.simulated,
            "ratio": self.ratio,
            "within": self.within,
        }


def measured_of(lines: Sequence[Traced]) -> Measured:
    """What was measured, from the lines of its record. Raises ``UserError`` naming the first without its seconds."""
    for line in lines:
        if line.ttft_s is None or line.total_s is None:
            raise UserError(f"{line.key}: no ttft_s and total_s; expected those of a measured load")
    ttft_s = [line.ttft_s for line in lines if line.ttft_s is not None]
    total_s = [line.total_s for line in lines if line.total_s is not None]
    ends = [line.arrival_s + line.total_s for line in lines if line.arrival_s is not None and line.total_s]
    begun = [line.arrival_s for line in lines if line.arrival_s is not None]
    rate = len(lines) / (max(ends) - min(begun)) if len(begun) == len(lines) == len(ends) else None
    return Measured(Spread.of(ttft_s), Spread.of(total_s), rate)


def compare(measured: Measured, figures: Figures, tolerance: float = TOLERANCE) -> list[Deviation]:
    """Every figure that both have."""
    found = []
    for name in COMPARED:
        real = _value(measured, name)
        if real is not None:
            found.append(Deviation(name, real, _value(figures, name) or 0.0, tolerance))
    return found


def _value(figures: Measured | Figures, name: str) -> float | None:
    value: Any = figures
    for part in name.split("."):
        value = getattr(value, part)
    return None if value is None else float(value)
