"""The cost of an engine step: the interface of calibrations and of estimates."""

from typing import Protocol

from pasta.placement import LaneCosts

_LANES = (1, 2, 4, 8, 16, 32)
#: The seconds that a step may take. Beside longer ones the clock would lose what else takes time; of shorter ones it
#: would lose the answers' own time, by which speedups divide.
LEAST_STEP_S, MOST_STEP_S = 1e-9, 1_000_000


class StepCosts(Protocol):
    """Returns the seconds of an engine's work. A step may hold a forward of a prompt's chunk and one of all lanes."""

    def lanes_s(self, requests: int, lanes: float, cache_tokens: int) -> float:
        """A step in which neighbouring slots each decode as many lanes (a forward is padded to the most of them),
        attending to as many cached tokens each."""
        ...

    def together_s(self, requests: int, lanes: float, cache_tokens: int) -> float | None:
        """Such a step as one of several that run together; ``None`` where steps do not."""
        ...

    def prefill_s(self, tokens: int, cache_tokens: int) -> float:
        """The forward of a chunk of a prompt, or of an absorbed chunk: so many tokens, after which the cache of
        their slot holds ``cache_tokens``."""
        ...

    def covers(self, requests: int, lanes: float, cache_tokens: int) -> bool:
        """Whether such a step lies within what was measured."""
        ...


def lane_costs(costs: StepCosts, prefill_chunk: int) -> LaneCosts:
    """Return the lane costs for placement, as a Decoder measures them at its start: one answer on an idle engine."""
    lanes = [count for count in _LANES if count == 1 or costs.covers(1, count, 1)]
    step_s = {count: costs.lanes_s(1, count, 1) for count in lanes}
    return LaneCosts.of(step_s, costs.prefill_s(prefill_chunk, prefill_chunk) / prefill_chunk)
