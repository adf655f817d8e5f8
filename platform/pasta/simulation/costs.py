"""What a step of an engine costs: the interface that a calibration, or an estimate, stands behind."""

from dataclasses import dataclass
from typing import Protocol

#: Up to the knee a step costs at most this many times a step with one lane.
_KNEE_RATIO = 1.5
_MOST_LANES = 64


class StepCosts(Protocol):
    """Seconds of an engine's work. A step may hold a forward of a prompt's chunk and one of all lanes."""

    def lanes_s(self, requests: int, lanes: float, cache_tokens: int) -> float:
        """A step in which neighbouring slots each decode as many lanes (a forward is padded to the most of them),
        attending to as many cached tokens each."""
        ...

    def prefill_s(self, tokens: int, cache_tokens: int) -> float:
        """The forward of a chunk of a prompt, or of an absorbed chunk: so many tokens, after which the cache of
        their slot holds ``cache_tokens``."""
        ...

    def covers(self, requests: int, lanes: float, cache_tokens: int) -> bool:
        """Whether such a step lies within what was measured."""
        ...


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """What placement goes by, as a Decoder measures it when it starts: ``knee``, lanes up to which a step costs
    little more than with one; ``lane_s``, what a lane more adds to a step; ``prefill_s``, a token of a prompt."""

    knee: int
    lane_s: float
    prefill_s: float

    @classmethod
    def of(cls, costs: StepCosts, prefill_chunk: int) -> "LaneCosts":
        """Of one answer's lanes on an idle engine."""
        lanes = [1]
        while 2 * lanes[-1] <= _MOST_LANES and costs.covers(1, 2 * lanes[-1], 1):
            lanes.append(2 * lanes[-1])
        step_s = {count: costs.lanes_s(1, count, 1) for count in lanes}
        knee = max(count for count in lanes if step_s[count] <= _KNEE_RATIO * step_s[1])
        lane_s = max(0.0, step_s[lanes[-1]] - step_s[1]) / max(1, lanes[-1] - 1)
        return cls(knee, lane_s, costs.prefill_s(prefill_chunk, prefill_chunk) / prefill_chunk)
