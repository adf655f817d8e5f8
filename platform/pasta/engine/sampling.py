"""Choosing tokens: constraints as rows of a boolean table, and keyed Gumbel noise, one stream a thread."""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pasta.engine import kernels
from pasta.engine.request import SamplingParams
from pasta.engine.transfer import to_device
from pasta.interpreter.limits import MAX_TOPIC_PIECE, Constraint
from pasta.lang.grammar import TagGrammar

#: Rows of the table of constraints at first: an answer needs a few dozen.
_CONSTRAINTS = 256
#: More tokens than any vocabulary has.
_MOST = 1 << 62
#: A bias that no logit outweighs. A larger one may be infinite in the logits' type: no number where it is forbidden.
_MOST_BIAS = 1e4
#: Rows of ``Choices.numbers``.
NUM_CHOICES = 7
#: Stands for an unknown token among those that are known in advance.
UNKNOWN = -2
#: Stands for the token of promises where none has a bias.
NO_PROMISE = -1


def log_probabilities(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's log-probability of its token [N], from ``logits`` [N, V], and the ``most`` likeliest tokens
    [N, most] with theirs. A token below 0 is none: its row's first number means nothing."""
    rows = torch.log_softmax(logits.float(), dim=-1)
    chosen = rows.gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)
    values, ids = rows.topk(min(most, rows.shape[-1]), dim=-1)
    return chosen, ids, values


def stream_key(seed: int, path: tuple[int, ...], step: int) -> int:
    """The 64-bit key of the ``step``-th choice in a thread's random stream.

    It depends on the request's seed, the thread's name and the step alone, so a sample does not depend on
    batching or on where a chunk is decoded.
    """
    digest = hashlib.blake2b(f"{seed}|{path}|{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [N, vocab_size] (float64), a function of a row's key [N] and the token id alone.

    Counter-based: the uniform number behind token ``i`` is the i-th output of SplitMix64 (Steele, Lea and Flood,
    OOPSLA 2014) seeded with the key.
    """
    ids = torch.arange(1, vocab_size + 1, device=keys.device)
    z = keys[:, None] + ids * _GOLDEN
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    z = z ^ _shifted(z, 31)
    uniform = (_shifted(z, 11).double() + 0.5) * 2.0**-53  # inside (0, 1): both logarithms are finite
    return -torch.log(-torch.log(uniform))


def gumbel_argmax(scores: Tensor, keys: Tensor) -> Tensor:
    """The token of each row of ``scores`` [N, V] (float64) whose score and noise, by the row's key [N], are the
    largest."""
    if scores.device.type == "cpu" and kernels.ready():
        found: Tensor = torch.ops.pasta.gumbel_argmax(scores, keys)
        return found
    return (scores + gumbel(keys, scores.shape[-1])).argmax(dim=-1)


# SplitMix64's constants as signed 64-bit integers: torch multiplies modulo 2^64, as the generator does.
_GOLDEN, _MIX_1, _MIX_2 = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class ConstraintTable:
    """Constraints as boolean rows: ``forbidden`` [num_constraints, vocab]; a row is made when it is first needed.

    ``forbidden`` keeps its address until there are more constraints than it has rows.
    """

    def __init__(self, grammar: TagGrammar, vocab_size: int, device: torch.device) -> None:
        self.grammar = grammar
        text = torch.frombuffer(bytearray(grammar.text_mask), dtype=torch.uint8).bool()
        chars = torch.tensor(list(grammar.topic_chars), dtype=torch.long)
        topic = torch.frombuffer(bytearray(grammar.topic_mask), dtype=torch.uint8).bool() & (
            chars <= MAX_TOPIC_PIECE
        )
        self._bases = {"text": text, "topic": topic, "none": torch.zeros_like(text)}
        ends = bytearray(len(grammar.text_mask))
        for token in grammar.tail.children:
            ends[token] = 1
        ends_topic = torch.frombuffer(ends, dtype=torch.uint8).bool()
        #: After which tokens a thread goes on as it is [modes, vocab]: in text (mode 0), and in a topic (1).
        self.goes_on = torch.stack((text, topic & ~ends_topic))
        self._rows: dict[Constraint, int] = {}
        self.forbidden = torch.ones(_CONSTRAINTS, vocab_size, dtype=torch.bool, device=device)

    def rows(self, constraints: Sequence[Constraint]) -> list[int]:
        """The row of each constraint."""
        return [row if (row := self._rows.get(c)) is not None else self._add(c) for c in constraints]

    def _add(self, constraint: Constraint) -> int:
        row = len(self._rows)
        if row == len(self.forbidden):
            self.forbidden = torch.cat([self.forbidden, torch.ones_like(self.forbidden)])
        base = self._bases[constraint.base].clone()
        for token in constraint.extra:
            base[token] = True
        self.forbidden[row, : len(base)] = to_device(~base, self.forbidden.device)
        self._rows[constraint] = row
        return row


def _as_integers(params: SamplingParams) -> tuple[int, ...]:
    """The rows of ``Choices.numbers`` that do not depend on the row's place: an integer, and the bits of doubles."""
    bias = min(params.promise_bias, _MOST_BIAS)
    doubles = bias, params.temperature, params.top_p, params.min_p
    return min(params.top_k, _MOST), *struct.unpack("4q", struct.pack("4d", *doubles))


class Choices(NamedTuple):
    """Everything that the choice of N rows' tokens depends on, as numbers, to be copied to the device at once.

    ``numbers`` [7, N]: three rows of integers, of which ``constraint`` is a row of the ``ConstraintTable`` and ``key``
    the row's stream key; then the bits of four rows of doubles. The other fields say what any row asks for.
    """

    numbers: npt.NDArray[np.int64]
    biased: bool
    sampled: bool
    cut: bool

    @classmethod
    def of(cls, constraints: Sequence[int], params: Sequence[SamplingParams], keys: Sequence[int]) -> Self:
        """Make it for rows with these constraints (by their rows in the table), parameters and stream keys."""
        different = {id(p): p for p in params}  # the rows of a request have one
        columns = {own: _as_integers(p) for own, p in different.items()}
        numbers = np.array([constraints, keys, *zip(*[columns[id(p)] for p in params], strict=True)])
        sampled = [p for p in different.values() if p.temperature > 0]
        return cls(
            numbers if params else np.zeros((NUM_CHOICES, 0), dtype=np.int64),
            any(p.promise_bias for p in different.values()),
            bool(sampled),
            any(p.top_k or p.top_p < 1.0 or p.min_p for p in sampled),
        )

    @property
    def temperatures(self) -> npt.NDArray[np.float64]:
        """The temperatures of the rows [N]."""
        return self.numbers[4].view(np.float64)


class Scores(NamedTuple):
    """A forward's results for N rows: logits [N, V] and likeliest permitted tokens [N] (-1: none), with the choices'
    parameters on the device [7, N] and on the host."""

    logits: Tensor
    likeliest: Tensor
    numbers: Tensor
    choices: Choices

    def after(self, count: int) -> "Scores":
        """Without the first ``count`` rows."""
        choices = self.choices._replace(numbers=self.choices.numbers[:, count:])
        return Scores(self.logits[count:], self.likeliest[count:], self.numbers[:, count:], choices)


def permit(logits: Tensor, numbers: Tensor, forbidden: Tensor, promise_id: int) -> Tensor:
    """``logits`` [N, V] with what the constraints forbid at -inf, and the biases of ``promise_id``, which may be
    ``NO_PROMISE``."""
    return permit_and_bias(logits, numbers[0], forbidden, promise_id, doubles(numbers)[0])


def doubles(numbers: Tensor) -> Tensor:
    """The last four rows of ``Choices.numbers`` as what they are, float64 [4, N]."""
    return numbers[3:].view(torch.float64)


def likeliest(permitted: Tensor) -> Tensor:
    """The likeliest token of each row [N], -1 where there is none: a logit is NaN, or no permitted one is finite."""
    largest, tokens = permitted.max(dim=-1)  # NaN if any is
    return tokens.masked_fill(~largest.isfinite(), -1)


def likeliest_permitted(logits: Tensor, numbers: Tensor, forbidden: Tensor, promise_id: int) -> Tensor:
    """``likeliest`` of what ``permit`` makes of these arguments."""
    if logits.device.type == "cpu" and kernels.runs(logits.dtype):
        found: Tensor = torch.ops.pasta.likeliest_permitted(logits, numbers, forbidden, promise_id)
        return found
    return likeliest(permit(logits, numbers, forbidden, promise_id))


def sample(permitted: Tensor, likeliest: Tensor, numbers: Tensor, *, cut: bool) -> Tensor:
    """A token for each row of ``permitted`` [N, V] by the Gumbel-max trick; ``likeliest`` where that is -1 or the
    temperature 0. ``cut``: whether any row has a top-k, top-p or min-p.

    A token's noise follows its id, not its rank: logits that differ in their last bits, as those of another batch do,
    choose another token only where two sums are that close.
    """
    logits, (_, temperatures, top_p, min_p) = permitted.float(), doubles(numbers)
    scaled = scaled_scores(logits, logits.amax(dim=-1), temperatures)
    if cut:
        scaled = cut_scores(scaled, logits, temperatures, numbers[2], top_p, min_p)
    found = gumbel_argmax(scaled, numbers[1])
    return torch.where((temperatures > 0) & (likeliest >= 0), found, likeliest)


# TorchScript (recording.py) compiles those below, and cannot read integers as doubles.


def permit_and_bias(
    logits: Tensor, constraints: Tensor, forbidden: Tensor, promise_id: int, biases: Tensor
) -> Tensor:
    """``permit`` by the rows' ``constraints`` and ``biases`` [N]."""
    permitted = logits.masked_fill(forbidden.index_select(0, constraints), float("-inf"))
    # A model without control tokens has no such logit.
    if 0 <= promise_id < logits.shape[-1]:
        permitted[:, promise_id] += biases.to(logits.dtype)
    return permitted


def scaled_scores(logits: Tensor, largest: Tensor, temperatures: Tensor) -> Tensor:
    """Distances of logits [N, V] from the largest [N], over the temperatures [N] (float64).

    In double: over the least temperature there is they are 0 or infinite.
    """
    return (logits.double() - largest[:, None].double()) / temperatures[:, None]


def cut_scores(
    scores: Tensor, logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """``scores`` [N, V] with the tokens at -inf that ``min_p``, ``top_k`` and then ``top_p`` cut off by the ``logits``;
    ties go to the lower id."""
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    scaled = scaled_scores(ordered, ordered[:, 0], temperatures)
    # The largest scaled logit is 0, so exp of a token's scaled logit is its probability over the likeliest token's.
    in_k = ((rank < top_k[:, None]) | (top_k[:, None] == 0)) & (scaled >= min_p.log()[:, None])
    probabilities = scaled.masked_fill(~in_k, float("-inf")).softmax(dim=-1)
    # The smallest set that reaches top_p: a token stays unless the tokens before it reach top_p together. Where top_p
    # is off, keep all: rounding may have all but the last sum to 1.
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = in_k & ((before < top_p[:, None]) | (top_p[:, None] >= 1.0) | (rank == 0))
    kept = torch.zeros_like(keep).scatter_(1, ids, keep)
    return scores.masked_fill(~kept, float("-inf"))
