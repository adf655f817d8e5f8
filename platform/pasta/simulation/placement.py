"""Where chunks are decoded: the decisions of the service's placements, and nothing else.

A response has a home, the replica that decodes its main thread. Whenever a chunk is forked, its home, which knows
its lanes, decides whether the chunk leaves; the Interpreter, which knows all replicas, where it then goes.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from pasta.simulation.costs import LaneCosts

Policy = Literal["local", "spread", "auto"]


class Placement(Protocol):
    """One way to place chunks."""

    def leaves(self, lanes: int, estimate: int, visible: int) -> bool:
        """Whether a chunk of ``estimate`` tokens that sees ``visible`` tokens leaves a home that has ``lanes`` in
        use, the new chunk's included."""
        ...


class Local:
    """Every chunk is a lane of its home."""

    def leaves(self, lanes: int, estimate: int, visible: int) -> bool:
        """Never."""
        return False


class Spread:
    """Every chunk on the least loaded replica."""

    def leaves(self, lanes: int, estimate: int, visible: int) -> bool:
        """Always: only the Interpreter knows who is least loaded."""
        return True


class Auto:
    """At home up to its knee. Beyond it, a chunk leaves if that saves more than it costs: staying, it slows every
    lane of the home in each of its steps; leaving, it is prefilled elsewhere, what it sees, and at home when it
    comes back, what it says."""

    def __init__(self, costs: LaneCosts) -> None:
        self._costs = costs

    def leaves(self, lanes: int, estimate: int, visible: int) -> bool:
        """Beyond the knee, if the chunk is long enough to pay for its prefill."""
        costs = self._costs
        if lanes <= costs.knee:
            return False
        return lanes * estimate * costs.lane_s > (visible + estimate) * costs.prefill_s


def make_placement(policy: Policy, costs: LaneCosts) -> Placement:
    """The placement of that name."""
    placements: dict[Policy, Placement] = {"local": Local(), "spread": Spread(), "auto": Auto(costs)}
    return placements[policy]


def least_loaded(loads: Sequence[int], home: int | None = None) -> int:
    """The replica with the fewest lanes; of equals, the home, where a chunk needs no prefill, then the first."""
    return min(range(len(loads)), key=lambda number: (loads[number], number != home, number))
