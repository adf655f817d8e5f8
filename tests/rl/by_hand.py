"""Log-probabilities of sampled answers, worked out row by row: the mask, and what each token was chosen among."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pasta.data.linearise import Example
from pasta.interpreter import Interpreter, Limits
from tests.training.pair_runs import CODEC, logits_by_hand


def sampled_logps_by_hand(model: nn.Module, example: Example, limits: Limits) -> Tensor:
    """Log-probability of the target of each row that has one, among what the engine may choose there."""
    logits, targets = logits_by_hand(model, example)
    kept = targets >= 0
    barred = barred_by_hand(example, limits, logits.shape[-1])
    return (
        logits.masked_fill(barred, -torch.inf)[kept].log_softmax(-1).gather(1, targets[kept][:, None])[:, 0]
    )


def barred_by_hand(example: Example, limits: Limits, vocab_size: int) -> Tensor:
    """What may not be chosen at each row [L, V]; nothing is barred where nothing is chosen."""
    prompt = next(row for row, target in enumerate(example.shift_labels) if target >= 0) + 1
    unbounded = replace(limits, max_tokens=1 << 30)
    interpreter = Interpreter(CODEC.grammar, unbounded, example.input_ids[:prompt], strict=False)
    barred = torch.zeros(len(example), vocab_size, dtype=torch.bool)
    stack = [0]
    for token, source in zip(example.input_ids[prompt:], sources(example)[prompt:], strict=True):
        if token == CODEC.control.async_open:
            stack.append(interpreter.threads[stack[-1]].children[-1][1])
            continue
        allowed = interpreter.allowed(stack[-1])
        barred[source] = torch.tensor([not allowed.permits(n, CODEC.grammar) for n in range(vocab_size)])
        barred[source, token] = False
        interpreter.emit(stack[-1], token)
        if token == CODEC.control.async_close:
            stack.pop()
    return barred


def in_storage_order(example: Example, logps: Tensor) -> list[float]:
    """Log-probabilities by row that predicts, as the response's tokens come: a given ``<async>`` has 0."""
    rows = [row for row, target in enumerate(example.shift_labels) if target >= 0]
    by_row = dict(zip(rows, logps.tolist(), strict=True))
    prompt = rows[0] + 1
    return [by_row.get(source, 0.0) for source in sources(example)[prompt:]]


def sources(example: Example) -> list[int]:
    """For each token the row that predicts it, the last one of its thread; -1 if none does."""
    control = CODEC.control
    found, stack, previous = [], [], -1
    for at, token in enumerate(example.input_ids):
        if token == control.async_open:
            stack.append(previous)
            found.append(-1)
            previous = at
            continue
        found.append(previous)
        previous = stack.pop() if token == control.async_close else at
    return found
