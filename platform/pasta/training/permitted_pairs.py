"""Has TRL's DPOTrainer score the tokens of pairs among what an engine may choose (``pasta.training.permitted``).

Written against trl 1.16.0, whose fused head (``fused_lm_head=True``, private) takes log-probabilities over the whole
vocabulary and has no place for a mask. tests/training/test_private.py fails, and names that version, when it is gone.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from pasta.data.linearise import prompt_length
from pasta.data.pairs import SIDES, PairCollator
from pasta.engine.sampling import ConstraintTable
from pasta.interpreter import IGNORE, UNBOUNDED, linearise
from pasta.training.permitted import mark_constraints, permitted_log_probs, scored_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PermittedPairCollator(PairCollator):
    """``PairCollator`` whose batches hold ``constraints`` [2N, S] too: the row of ``table`` under which each target was
    chosen. No limits but those of the language are known."""

    table: ConstraintTable

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = PairCollator.__call__(self, rows)  # a dataclass with slots has no super()
        constraints = torch.zeros_like(batch["shift_labels"])
        for number, row in enumerate([row[side] for side in SIDES for row in rows]):
            given = prompt_length(row["shift_labels"])
            prompt_ids, answer_ids = row["input_ids"][:given], row["input_ids"][given:]
            sources = linearise(self.table.grammar, prompt_ids, answer_ids).predicted_by[given:]
            mark_constraints(constraints[number], self.table, UNBOUNDED, prompt_ids, answer_ids, sources)
        batch["constraints"] = constraints
        return batch


@dataclass
class PermittedOutput(ModelOutput):
    """What DPOTrainer reads of the output of its fused head, each [2N, S]."""

    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    mean_logits: Tensor | None = None
    is_top1: Tensor | None = None


def score_permitted(model: PreTrainedModel, table: ConstraintTable) -> None:
    """Have ``model``, to which TRL has given its fused head, score targets among what ``constraints`` permit wherever
    a batch has them. Logits of the answers are whole for that, where TRL takes tiles of them."""
    fused = model.forward

    # As TRL's: the signature stays, and so does the method.
    @functools.wraps(type(model).forward)
    def forward(
        self: PreTrainedModel,
        *args: Any,
        constraints: Tensor | None = None,
        fused_lm_head: bool = False,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if constraints is None or not fused_lm_head:
            return fused(
                *args, fused_lm_head=fused_lm_head, labels=labels, shift_labels=shift_labels, **kwargs
            )
        assert shift_labels is not None, "targets are aligned"
        columns = scored_columns(shift_labels)
        logits = fused(*args, logits_to_keep=columns, **kwargs).logits
        log_probs, entropy = permitted_log_probs(logits, shift_labels, constraints, table.forbidden)
        with torch.no_grad():
            targets = shift_labels != IGNORE
            mean_logits, is_top1 = torch.zeros_like(log_probs), torch.zeros_like(targets)
            mean_logits[:, columns] = logits.mean(dim=-1, dtype=mean_logits.dtype)
            is_top1[:, columns] = logits.argmax(dim=-1) == shift_labels[:, columns]
        return PermittedOutput(log_probs, entropy, mean_logits * targets, is_top1 & targets)

    model.forward = types.MethodType(forward, model)
