"""Sampling: the right distribution, and the same token whatever rounding did to the logits."""

import math

import pytest
import torch

from pasta.engine import SamplingParams
from pasta.engine.sampling import gumbel, stream_key
from tests.support.choices import choose

PROMISE = 5


def draw(logits, sampling, keys):
    """The tokens that one row of logits [V] gives with each of the keys."""
    rows = logits.expand(len(keys), -1)
    allowed = torch.ones_like(rows, dtype=torch.bool)
    return choose(rows, allowed, [sampling] * len(keys), keys, PROMISE)


def keys(count, seed=0):
    return [stream_key(seed, (), step) for step in range(count)]


def expected(logits, sampling):
    """The distribution by its definition: temperature, then the k likeliest, then the least set that reaches p."""
    probabilities = torch.softmax(logits.double() / sampling.temperature, -1)
    order = probabilities.argsort(descending=True, stable=True).tolist()
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, kept, reached = sum(probabilities[i].item() for i in order), [], 0.0
    for token in order:
        if reached >= sampling.top_p * total and kept:
            break
        kept.append(token)
        reached += probabilities[token].item()
    return {token: probabilities[token].item() / reached for token in kept}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.7},
    ],
)
def test_tokens_come_as_often_as_their_probabilities_say(fields):
    sampling, count = SamplingParams(**fields), 20_000
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    tokens = draw(logits, sampling, keys(count))
    wanted = expected(logits, sampling)
    assert set(tokens) <= set(wanted)
    for token, probability in wanted.items():
        # Five standard deviations of a count.
        error = 5 * math.sqrt(count * probability * (1 - probability)) + 1
        assert abs(tokens.count(token) - count * probability) < error, token


def test_near_equal_logits_that_swap_ranks_choose_the_same_token():
    logits = torch.tensor([2.0, 2.0 - 1e-6, 1.0, 0.5, 0.0, -1.0])
    swapped = torch.tensor([2.0 - 1e-6, 2.0, 1.0, 0.5, 0.0, -1.0])
    sampling, streams = SamplingParams(temperature=1.0), keys(400)
    assert draw(logits, sampling, streams) == draw(swapped, sampling, streams)


def test_noise_in_the_logits_seldom_chooses_another_token():
    """Noise of 1e-2 is what bfloat16 does to logits: by inverse CDF in rank order it changed nearly every draw."""
    generator, count = torch.Generator().manual_seed(1), 400
    logits = torch.randn(count, 2048, generator=generator)
    noisy = logits + 1e-2 * torch.randn(count, 2048, generator=generator)
    allowed = torch.ones_like(logits, dtype=torch.bool)
    params, streams = [SamplingParams(temperature=1.0)] * count, keys(count)
    found = choose(logits, allowed, params, streams, PROMISE)
    changed = sum(
        a != b for a, b in zip(found, choose(noisy, allowed, params, streams, PROMISE), strict=True)
    )
    assert changed <= 0.04 * count


def test_a_row_chooses_the_same_alone_and_among_others():
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(2))
    allowed = torch.rand(6, 300, generator=torch.Generator().manual_seed(3)) > 0.3
    params = [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.6),
        SamplingParams(temperature=1.0, promise_bias=4.0),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.9),
    ]
    together = choose(logits, allowed, params, keys(6), PROMISE)
    for row in range(6):
        one = slice(row, row + 1)
        assert choose(logits[one], allowed[one], params[one], keys(6)[one], PROMISE) == [together[row]]
        assert allowed[row, together[row]]


def test_a_stream_is_named_by_seed_thread_and_step():
    found = {
        stream_key(seed, path, step) for seed in (0, 1) for path in ((), (0,), (0, 1)) for step in range(50)
    }
    assert len(found) == 300


def test_noise_is_standard_gumbel_and_independent_from_token_to_token():
    noise = gumbel(torch.tensor(keys(50)), 4000)
    assert noise.isfinite().all()
    assert abs(noise.mean().item() - 0.5772) < 0.02
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.05
    centred = noise - noise.mean()
    assert abs((centred[:, 1:] * centred[:, :-1]).mean().item()) < 0.02
    assert abs((centred[1:] * centred[:-1]).mean().item()) < 0.02


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_that_the_logits_type_cannot_hold_is_a_large_one(dtype, temperature):
    rows = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, 3.0]] * 2, dtype=dtype)
    allowed = torch.ones_like(rows, dtype=torch.bool)
    allowed[1, PROMISE] = False
    for streams in zip(keys(20), keys(20, seed=1), strict=True):
        found = [
            choose(
                rows,
                allowed,
                [SamplingParams(temperature=temperature, promise_bias=bias)] * 2,
                streams,
                PROMISE,
            )
            for bias in (1e3, 1e308)
        ]
        assert found[0] == found[1]
        assert found[1][0] == PROMISE != found[1][1]
