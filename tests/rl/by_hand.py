"""Log-probabilities of sampled answers, worked out row by row: the mask, and what each token was chosen among."""

import torch
from torch import Tensor, nn

from pasta.data.linearise import Example
from pasta.interpreter import Limits
from tests.training.pair_runs import barred_by_hand, logits_by_hand, sources


def sampled_logps_by_hand(model: nn.Module, example: Example, limits: Limits) -> Tensor:
    """Log-probability of the target of each row that has one, among what the engine may choose there."""
    logits, targets = logits_by_hand(model, example)
    kept = targets >= 0
    barred = barred_by_hand(example, limits, logits.shape[-1])
    return (
        logits.masked_fill(barred, -torch.inf)[kept].log_softmax(-1).gather(1, targets[kept][:, None])[:, 0]
    )


def in_storage_order(example: Example, logps: Tensor) -> list[float]:
    """Log-probabilities by row that predicts, as the response's tokens come: a given ``<async>`` has 0."""
    rows = [row for row, target in enumerate(example.shift_labels) if target >= 0]
    by_row = dict(zip(rows, logps.tolist(), strict=True))
    prompt = rows[0] + 1
    return [by_row.get(source, 0.0) for source in sources(example)[prompt:]]
