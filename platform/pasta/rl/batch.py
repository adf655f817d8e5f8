"""Makes a training batch of sampled answers: threads and masks follow from their token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pasta.data.collate import ThreadCollator
from pasta.data.linearise import example_of
from pasta.data.packing import packed_row
from pasta.interpreter import linearise
from pasta.lang import TagGrammar

#: Sequences are padded to a multiple of so many tokens.
MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class ThreadBatch:
    """``inputs`` are those of ``ThreadCollator`` without ``labels``, [B, S].

    ``predicted_by[i]`` has an entry a token of answer i: the row whose logits predict it, or -1 for a token that is
    given (``<async>``).
    """

    inputs: dict[str, Tensor]
    predicted_by: list[list[int]]

    def by_token(self, values: Tensor, length: int) -> Tensor:
        """Read ``values`` [B, S] at the rows that predict an answer's tokens: [B, length]; 0 for given ones."""
        index = torch.full((len(self.predicted_by), length), -1, dtype=torch.long)
        for row, sources in enumerate(self.predicted_by):
            index[row, : len(sources)] = torch.tensor(sources, dtype=torch.long)
        index = index.to(values.device)
        return values.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0.0)


def thread_batch(
    grammar: TagGrammar, answers: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int
) -> ThreadBatch:
    """The batch of some answers: for each the ids of its prompt, and of the answer in storage order, end-of-text last.

    Raises ``ConstraintError`` for an answer that is not well-formed.
    """
    rows, predicted_by = [], []
    for prompt_ids, response_ids in answers:
        lined = linearise(grammar, prompt_ids, response_ids)
        rows.append(packed_row([example_of(lined)]))
        predicted_by.append(lined.predicted_by[len(prompt_ids) :])
    inputs = ThreadCollator(pad_id, MULTIPLE)(rows)
    del inputs["labels"]
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
