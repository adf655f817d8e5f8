"""Choosing tokens: constraints as rows of a boolean table, and one random stream a thread."""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pasta.engine.request import Logprobs, SamplingParams
from pasta.interpreter.limits import MAX_TOPIC_PIECE, Constraint
from pasta.lang.grammar import TagGrammar


def log_probabilities(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[Logprobs]:
    """For each row of ``logits`` [N, V] that of its token, and the ``counts`` likeliest of the row."""
    rows = torch.log_softmax(logits.float(), dim=-1)
    chosen = rows.gather(1, torch.tensor(tokens, device=rows.device)[:, None]).squeeze(1).tolist()
    values, ids = rows.topk(min(max(counts), rows.shape[-1]), dim=-1)
    tops = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [
        Logprobs(own, tuple(zip(top_ids[:count], top_values[:count], strict=True)))
        for own, (top_ids, top_values, count) in zip(chosen, tops, strict=True)
    ]


def uniform(seed: int, path: tuple[int, ...], step: int) -> float:
    """The ``step``-th number in [0, 1) of a thread's random stream.

    Counter-based: it depends on the request's seed, the thread's name and the step alone, so a sample does
    not depend on batching or on where a chunk is decoded.
    """
    digest = hashlib.blake2b(f"{seed}|{path}|{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


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
    logits: Tensor, allowed: Tensor, params: Sequence[SamplingParams], draws: Sequence[float], promise_id: int
) -> list[int | None]:
    """One token for each row of ``logits`` [N, V], among ``allowed`` [N, V] (bool); ``None`` where there is none to
    choose, because a logit is not a number or none of the allowed ones is finite.

    ``draws`` are the rows' numbers in [0, 1), used where the temperature is above 0.
    """
    biases = [p.promise_bias for p in params]
    if any(biases):
        logits = logits.clone()
        logits[:, promise_id] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    logits = logits.masked_fill(~allowed, float("-inf"))
    # The largest is NaN if any is.
    largest, likeliest = logits.max(dim=-1)
    tokens: list[int | None] = likeliest.tolist()
    for row, (param, value) in enumerate(zip(params, largest.tolist(), strict=True)):
        if not math.isfinite(value):
            tokens[row] = None
        elif param.temperature > 0:
            tokens[row] = _sample(logits[row].float(), param, draws[row])
    return tokens


def _sample(logits: Tensor, params: SamplingParams, draw: float) -> int:
    """Inverse-CDF sampling over tokens in order of falling probability; ties go to the lower id."""
    ordered, ids = torch.sort(logits, descending=True, stable=True)
    if params.top_k:
        ordered = ordered[: params.top_k]
    # Distances from the likeliest, in double: over the least temperature there is they are 0 or infinite.
    probabilities = torch.softmax((ordered.double() - ordered[0].double()) / params.temperature, dim=-1)
    cumulative = probabilities.cumsum(-1)
    if params.top_p < 1.0:
        # The smallest set that reaches top_p: a token stays if those before it do not reach it.
        keep = int((cumulative - probabilities < params.top_p).sum())
        cumulative = cumulative[: max(keep, 1)]
    place = torch.searchsorted(cumulative, draw * cumulative[-1], right=True)
    return int(ids[min(int(place), len(cumulative) - 1)])
