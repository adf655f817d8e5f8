"""Choosing tokens from given logits."""

import torch

from pasta.engine.sampling import NO_PROMISE, Choices, likeliest, permit, sample


def choose(logits, allowed, params, keys, promise_id):
    """The token of each row of logits [N, V] among those allowed [N, V]; -1 where there is none."""
    choices = Choices.of(range(len(params)), params, keys)
    numbers = torch.from_numpy(choices.numbers)
    permitted = permit(logits, numbers, ~allowed, promise_id if choices.biased else NO_PROMISE)
    return sample(permitted, likeliest(permitted), numbers, cut=choices.cut).tolist()
