"""Makes a training batch of sampled answers: threads and masks follow from their token ids.

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
from pasta.interpreter import linearise
from pasta.lang import TagGrammar

#: Sequences are padded to a multiple of so many tokens.
MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class ThreadBatch:
    """``inputs`` are those of ``ThreadCollator`` without ``labels``, [R, S]: R rows hold all B answers.

    ``predicted_by[i]`` has an entry a token of answer i: the place in the flattened inputs whose logits predict it, or
    -1 for a token that is given (``<async>``).
    """

    inputs: dict[str, Tensor]
    predicted_by: list[list[int]]

    def by_token(self, values: Tensor, length: int) -> Tensor:
        """Read ``values`` [R, S] at the places that predict an answer's tokens: [B, length]; 0 for given ones."""
        index = torch.full((len(self.predicted_by), length), -1, dtype=torch.long)
        for answer, sources in enumerate(self.predicted_by):
            index[answer, : len(sources)] = torch.tensor(sources, dtype=torch.long)
        index = index.to(values.device)
        return values.flatten()[index.clamp(min=0)].masked_fill(index < 0, 0.0)


def thread_batch(
    grammar: TagGrammar, answers: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int
) -> ThreadBatch:
    """The batch of some answers: for each the ids of its prompt, and of the answer in storage order, end-of-text last.

    Raises ``ConstraintError`` for an answer that is not well-formed.
    """
    lined = [linearise(grammar, prompt_ids, response_ids) for prompt_ids, response_ids in answers]
    lengths = [len(answer.token_ids) for answer in lined]
    rows = pack(lengths, max(lengths))
    inputs = ThreadCollator(pad_id, MULTIPLE)(
        [packed_row([example_of(lined[i]) for i in row]) for row in rows]
    )
    del inputs["labels"]
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
    return ThreadBatch(inputs, predicted_by)


def is_chosen(grammar: TagGrammar, response_ids: Sequence[int], *, cut: bool = False) -> list[int]:
    """1 for each token of an answer that the model chose, 0 for ``<async>``, which is given.

    Where an answer was ``cut``, limits ended threads. The ends of all of them count as given then: to learn from one
    that nobody chose, in an answer that is worth nothing, would teach the model not to end.
    """
    given = {grammar.control.async_open}
    if cut:
        given |= {grammar.control.async_close, *grammar.eos_ids}
    return [int(token not in given) for token in response_ids]
