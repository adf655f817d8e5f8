"""Costs derived from a device's data sheet: an estimate for devices that were not measured.

The roofline (Williams, Waterman and Patterson, 2009): a forward takes as long as the slower of reading what it must
read and computing what it must compute.
"""

from dataclasses import dataclass, fields

from pasta.bounds import check_at_least, check_at_most, check_not_negative, check_positive
from pasta.simulation.calibration import LEAST_STEP_S, MOST_STEP_S

#: A smaller share is a mistake, and divides by nothing in the end.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class RooflineSection:
    """A decoder model on a device. Raises ``ValueError`` when a number is out of range.

    ``memory_bytes`` bounds weights and cache. All ``parameters`` are read in each step, ``bytes_per_value`` bytes
    each; a cached token is 2 · layers · kv_heads · head_dim values, read by each request in each step. A token costs
    2 · parameters operations, and 4 · layers · heads · head_dim for each cached token that it attends to.
    ``memory_bytes_s`` and ``flops_s`` are the device's peaks, ``bandwidth_efficiency`` and ``compute_efficiency``
    the share of them that is assumed to be reached, ``overhead_s`` what each forward is assumed to cost besides
    (launches, Python). ``link_bytes_s`` is what a device sends to others, for training alone; by default it costs
    nothing.
    """

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    memory_bytes_s: float
    flops_s: float
    memory_bytes: float
    bytes_per_value: int = 2
    bandwidth_efficiency: float = 1.0
    compute_efficiency: float = 1.0
    overhead_s: float = 0.0
    link_bytes_s: float | None = None

    def __post_init__(self) -> None:
        check_not_negative(self, "overhead_s")
        check_positive(self, *(field.name for field in fields(self) if field.name != "overhead_s"))
        for name in ("bandwidth_efficiency", "compute_efficiency"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a share of 1")
        check_at_least(self, bandwidth_efficiency=_LEAST_SHARE, compute_efficiency=_LEAST_SHARE)
        check_at_most(self, overhead_s=MOST_STEP_S)
        read_s, computed_s = self._parts_s(1, 1, 1)
        if not LEAST_STEP_S <= (step_s := max(read_s, computed_s)) <= MOST_STEP_S:
            name = "memory_bytes_s" if read_s >= computed_s else "flops_s"
            raise ValueError(
                f"{name} {getattr(self, name):g}: with {self.parameters:g} parameters a step takes {step_s:g} s; "
                f"expected from {LEAST_STEP_S:g} to {MOST_STEP_S:,} s"
            )

    def check_memory(self, num_slots: int, slot_tokens: int) -> None:
        """Raise ``ValueError`` if weights and so much cache do not fit into the device."""
        needed = self.bytes_per_value * (self.parameters + num_slots * slot_tokens * self._values_per_token)
        if needed > self.memory_bytes:
            raise ValueError(
                f"engine.num_slots {num_slots}: with slot_tokens {slot_tokens} weights and cache take "
                f"{needed / 1e9:.0f} GB, but the device has {self.memory_bytes / 1e9:.0f} GB"
            )

    @property
    def _values_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim

    def lanes_s(self, requests: int, lanes: float, cache_tokens: int) -> float:
        """See ``MeasuredCosts``."""
        return self._forward_s(requests, requests * lanes, cache_tokens)

    def together_s(self, requests: int, lanes: float, cache_tokens: int) -> float | None:
        """None: on a GPU the engine runs each step alone."""
        return None

    def prefill_s(self, tokens: int, cache_tokens: int) -> float:
        """See ``MeasuredCosts``."""
        return self._forward_s(1, tokens, cache_tokens)

    def training_s(self, tokens: float, length: float, forwards: float, moved: float) -> float:
        """Seconds of one pass of a training step on a device: ``tokens`` in sequences of ``length``, work worth so many
        ``forwards``, all weights sent or received ``moved`` times.

        A backward pass costs two forwards (Kaplan et al. 2020, arXiv 2001.08361, section 2.1); a token attends to half
        of its sequence on average. Arithmetic, reading the weights and traffic overlap, so that the slowest counts.
        """
        attention = 4 * self.layers * self.heads * self.head_dim * length / 2
        weights = self.bytes_per_value * self.parameters
        return self.overhead_s + max(
            tokens * forwards * (2 * self.parameters + attention) / (self.flops_s * self.compute_efficiency),
            forwards * weights / (self.memory_bytes_s * self.bandwidth_efficiency),
            moved * weights / self.link_bytes_s if self.link_bytes_s is not None else 0.0,
        )

    def covers(self, requests: int, lanes: float, cache_tokens: int) -> bool:
        """Always true: a formula has no range of measurements."""
        return True

    def _forward_s(self, requests: int, rows: float, cache_tokens: int) -> float:
        return self.overhead_s + max(self._parts_s(requests, rows, cache_tokens))

    def _parts_s(self, requests: int, rows: float, cache_tokens: int) -> tuple[float, float]:
        """The seconds of a forward's reading, and of its arithmetic."""
        read = self.bytes_per_value * (self.parameters + requests * cache_tokens * self._values_per_token)
        attention = 4 * self.layers * self.heads * self.head_dim * cache_tokens
        computed = rows * (2 * self.parameters + attention)
        return (
            read / (self.memory_bytes_s * self.bandwidth_efficiency),
            computed / (self.flops_s * self.compute_efficiency),
        )
