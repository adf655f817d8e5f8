"""Makes a training batch of sampled answers: threads, masks and what each token was chosen among follow from their ids.

Answers share rows that are as long as the longest needs: answers to one prompt differ in length by several times, and
with a row each most of a batch would be padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pasta.data.collate import ThreadCollator
from pasta.data.linearise import example_of
from pasta.data.packing import pack, packed_row
from pasta.engine.sampling import ConstraintTable
from pasta.interpreter import Limits, linearise
from pasta.lang import TagGrammar
from pasta.training.permitted import mark_constraints, permitted_log_probs, scored_columns

#: Sequences are padded to a multiple of so many tokens.
MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class ThreadBatch:
    """``inputs`` are those of ``ThreadCollator`` without labels, [R, S]: R rows hold all B answers.

    ``labels`` [R, S] are the tokens that they predict, or -100, and ``constraints`` [R, S] the rows of a
    ``ConstraintTable`` under which those were chosen. ``predicted_by[i]`` has an entry a token of answer i: the place
    in the flattened inputs whose logits predict it, or -1 for a token that is given (``<async>``).
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    constraints: Tensor
    predicted_by: list[list[int]]

    def to(self, device: torch.device) -> "ThreadBatch":
        """The same on ``device``."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return ThreadBatch(inputs, self.labels.to(device), self.constraints.to(device), self.predicted_by)

    @property
    def columns(self) -> Tensor:
        """The columns [K] whose logits ``log_probs`` needs, a model's ``logits_to_keep``."""
        return scored_columns(self.labels)

    def log_probs(self, logits: Tensor, forbidden: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """The log-probabilities [R, S] of ``labels`` as an engine samples at ``temperature``, and the entropies there.

        ``logits`` [R, K, V] of ``columns``, ``forbidden`` [C, V] of the table. What a constraint forbids takes no part:
        a chunk must go on where its model would have ended the answer, and a bad answer in which it did would teach it
        to end.
        """
        return permitted_log_probs(logits, self.labels, self.constraints, forbidden, temperature)

    def by_token(self, values: Tensor, length: int) -> Tensor:
        """Read ``values`` [R, S] at the places that predict an answer's tokens: [B, length]; 0 for given ones."""
        index = torch.full((len(self.predicted_by), length), -1, dtype=torch.long)
        for answer, sources in enumerate(self.predicted_by):
            index[answer, : len(sources)] = torch.tensor(sources, dtype=torch.long)
        index = index.to(values.device)
        return values.flatten()[index.clamp(min=0)].masked_fill(index < 0, 0.0)


def thread_batch(
    table: ConstraintTable,
    limits: Limits,
    answers: Sequence[tuple[Sequence[int], Sequence[int]]],
    pad_id: int,
) -> ThreadBatch:
    """The batch of some answers: for each the ids of its prompt, and of the answer in storage order, end-of-text last.
    They were sampled within ``limits``.

    Raises ``ConstraintError`` for an answer that is not well-formed.
    """
    grammar = table.grammar
    lined = [linearise(grammar, prompt_ids, response_ids) for prompt_ids, response_ids in answers]
    lengths = [len(answer.token_ids) for answer in lined]
    rows = pack(lengths, max(lengths))
    inputs = ThreadCollator(pad_id, MULTIPLE)(
        [packed_row([example_of(lined[i]) for i in row]) for row in rows]
    )
    del inputs["labels"]
    labels = inputs.pop("shift_labels")
    begins = [0] * len(lined)
    for number, row in enumerate(rows):
        at = number * inputs["input_ids"].shape[1]
        for i in row:
            begins[i] = at
            at += lengths[i]
    predicted_by = [
        [source if source < 0 else begin + source for source in answer.predicted_by[len(prompt_ids) :]]
        for begin, answer, (prompt_ids, _) in zip(begins, lined, answers, strict=True)
    ]
    constraints = torch.zeros(labels.numel(), dtype=torch.long)
    for sources, (prompt_ids, response_ids) in zip(predicted_by, answers, strict=True):
        mark_constraints(constraints, table, limits, prompt_ids, response_ids, sources)
    return ThreadBatch(inputs, labels, constraints.view(labels.shape), predicted_by)


def is_chosen(grammar: TagGrammar, response_ids: Sequence[int], *, cut: bool = False) -> list[int]:
    """1 for each token of an answer that the model chose, 0 for ``<async>``, which is given.

    Where an answer was ``cut``, limits ended threads. The ends of all of them count as given then: to learn from one
    that nobody chose, in an answer that is worth nothing, would teach the model not to end.
    """
    given = {grammar.control.async_open}
    if cut:
        given |= {grammar.control.async_close, *grammar.eos_ids}
    return [int(token not in given) for token in response_ids]
