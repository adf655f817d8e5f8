"""Choosing tokens: constraints as rows of a boolean table, and keyed Gumbel noise, one stream a thread."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from pasta.engine.request import Logprobs, SamplingParams
from pasta.interpreter.limits import MAX_TOPIC_PIECE, Constraint
from pasta.lang.grammar import TagGrammar


def log_probabilities(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[Logprobs]:
    """Return each row's log-probability of its token from ``logits`` [N, V], and those of the ``counts`` likeliest."""
    rows = torch.log_softmax(logits.float(), dim=-1)
    chosen = rows.gather(1, torch.tensor(tokens, device=rows.device)[:, None]).squeeze(1).tolist()
    values, ids = rows.topk(min(max(counts), rows.shape[-1]), dim=-1)
    tops = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [
        Logprobs(own, tuple(zip(top_ids[:count], top_values[:count], strict=True)))
        for own, (top_ids, top_values, count) in zip(chosen, tops, strict=True)
    ]


def stream_key(seed: int, path: tuple[int, ...], step: int) -> int:
    """The 64-bit key of the ``step``-th choice in a thread's random stream.

    It depends on the request's seed, the thread's name and the step alone, so a sample does not depend on
    batching or on where a chunk is decoded.
    """
    digest = hashlib.blake2b(f"{seed}|{path}|{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel(keys: Sequence[int], vocab_size: int, device: torch.device | None = None) -> Tensor:
    """Standard Gumbel noise [N, vocab_size] (float64), a function of a row's key and the token id alone.

    Counter-based: the uniform number behind token ``i`` is the i-th output of SplitMix64 (Steele, Lea and Flood,
    OOPSLA 2014) seeded with the key.
    """
    ids = torch.arange(1, vocab_size + 1, device=device)
    z = torch.tensor(keys, device=device)[:, None] + ids * _GOLDEN
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    z = z ^ _shifted(z, 31)
    uniform = (_shifted(z, 11).double() + 0.5) * 2.0**-53  # inside (0, 1): both logarithms are finite
    return -torch.log(-torch.log(uniform))


# SplitMix64's constants as signed 64-bit integers: torch multiplies modulo 2^64, as the generator does.
_GOLDEN, _MIX_1, _MIX_2 = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class ConstraintTable:
    """Constraints as boolean rows [num_constraints, vocab]; a row is made when it is first needed."""

    def __init__(self, grammar: TagGrammar, vocab_size: int, device: torch.device) -> None:
        self._device, self._vocab_size = device, vocab_size
        text = torch.frombuffer(bytearray(grammar.text_mask), dtype=torch.uint8).bool()
        chars = torch.tensor(list(grammar.topic_chars), dtype=torch.long)
        topic = torch.frombuffer(bytearray(grammar.topic_mask), dtype=torch.uint8).bool() & (
            chars <= MAX_TOPIC_PIECE
        )
        self._bases = {"text": text, "topic": topic, "none": torch.zeros_like(text)}
        self._rows: dict[Constraint, int] = {}
        self._table = torch.zeros(16, vocab_size, dtype=torch.bool, device=device)

    def rows(self, constraints: Sequence[Constraint]) -> Tensor:
        """Allowed tokens of each constraint: bool [len(constraints), vocab]."""
        indices = [self._rows[c] if c in self._rows else self._add(c) for c in constraints]
        return self._table[indices]

    def _add(self, constraint: Constraint) -> int:
        row = len(self._rows)
        if row == len(self._table):
            self._table = torch.cat([self._table, torch.zeros_like(self._table)])
        base = self._bases[constraint.base].clone()
        base[list(constraint.extra)] = True
        self._table[row, : len(base)] = base.to(self._device)
        self._rows[constraint] = row
        return row


def choose(
    logits: Tensor, allowed: Tensor, params: Sequence[SamplingParams], keys: Sequence[int], promise_id: int
) -> list[int | None]:
    """One token for each row of ``logits`` [N, V], among ``allowed`` [N, V] (bool); ``None`` where there is none to
    choose, because a logit is not a number or none of the allowed ones is finite.

    ``keys`` are the rows' stream keys, used where the temperature is above 0.
    """
    biases = [p.promise_bias for p in params]
    if any(biases) and promise_id < logits.shape[-1]:  # a model without control tokens has no such logit
        logits = logits.clone()
        logits[:, promise_id] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    logits = logits.masked_fill(~allowed, float("-inf"))
    # The largest is NaN if any is.
    largest, tokens = logits.max(dim=-1)
    sampled = [row for row, p in enumerate(params) if p.temperature > 0]
    if sampled:
        tokens[sampled] = _sample(
            logits[sampled].float(), [params[row] for row in sampled], [keys[row] for row in sampled]
        )
    found: list[int] = tokens.masked_fill(~largest.isfinite(), -1).tolist()
    return [None if token < 0 else token for token in found]


def _sample(logits: Tensor, params: Sequence[SamplingParams], keys: Sequence[int]) -> Tensor:
    """A token for each row of ``logits`` [N, V] (float32) by the Gumbel-max trick.

    A token's noise follows its id, not its rank: logits that differ in their last bits, as those of another batch do,
    choose another token only where two sums are that close.
    """
    temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=logits.device)
    scaled = _scaled(logits, logits.amax(dim=-1), temperatures)
    if any(p.top_k or p.top_p < 1.0 or p.min_p for p in params):
        scaled = scaled.masked_fill(~_kept(logits, temperatures, params), float("-inf"))
    return (scaled + gumbel(keys, scaled.shape[-1], scaled.device)).argmax(dim=-1)


def _scaled(logits: Tensor, largest: Tensor, temperatures: Tensor) -> Tensor:
    """Distances of logits [N, V] from the largest [N], over the temperatures [N] (float64).

    In double: over the least temperature there is they are 0 or infinite.
    """
    return (logits.double() - largest[:, None].double()) / temperatures[:, None]


def _kept(logits: Tensor, temperatures: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Which tokens of each row [N, V] ``min_p``, ``top_k`` and then ``top_p`` leave: bool [N, V]; ties go to the lower
    id."""
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = torch.tensor([p.top_k or logits.shape[-1] for p in params], device=logits.device)
    scaled = _scaled(ordered, ordered[:, 0], temperatures)
    # The likeliest token's distance is 0: another one's probability is exp of its own times that one's.
    min_p = scaled.new_tensor([p.min_p for p in params])
    in_k = (rank < top_k[:, None]) & (scaled >= min_p.log()[:, None])
    probabilities = scaled.masked_fill(~in_k, float("-inf")).softmax(dim=-1)
    # The smallest set that reaches top_p: a token stays if those before it do not reach it. Off is off: rounding
    # may have the sum of all but the last reach 1.
    top_p = scaled.new_tensor([p.top_p if p.top_p < 1.0 else 2.0 for p in params])
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = in_k & ((before < top_p[:, None]) | (rank == 0))
    return torch.zeros_like(keep).scatter_(1, ids, keep)
