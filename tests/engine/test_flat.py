"""Of slots with different numbers of lanes only what is fed passes the layers between attention; nothing changes."""

import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request
from tests.support.documents import random_document
from tests.support.models import CONFIGS, tiny

SIZES = {"multi_step": False, "num_slots": 3, "slot_tokens": 512, "prefill_chunk": 16, "drafts": 0}


def replays(codec):
    """One plain answer, and two with threads of several depths."""
    documents = [random_document(seed, depth=3) for seed in (0, 3, 5)]
    return [
        Request([5, 6, n], forced=[*codec.encode(document), codec.eos_id], request_id=str(n))
        for n, document in enumerate(documents)
    ]


def steps(engine):
    """What each forward was asked: tokens fed, rows computed, logits."""
    forward, seen = engine.runner.forward, []

    def watched(slots, feeds, *rest):
        scores = forward(slots, feeds, *rest)
        fed = [len(rows) for rows in feeds.values()]
        seen.append((len(slots) * max(fed), sum(fed), engine.runner.rows_computed, scores.logits.clone()))
        return scores

    engine.runner.forward = watched
    results = {result.request_id: result.text for result in engine.decode(replays(engine.codec))}
    return seen, results


@pytest.mark.slow
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_flat_steps_give_the_logits_of_padded_ones(family, traced):
    loaded = tiny(family, packed=True)
    config = EngineConfig(**SIZES, trace_forward=traced)
    flat, answers = steps(Engine(loaded, config))
    engine = Engine(loaded, config)
    engine.runner._can_be_flat = False
    padded, expected = steps(engine)
    assert answers == expected
    assert any(rows < of for of, _, rows, _ in flat)
    assert all(rows == of for of, _, rows, _ in padded)
    for (*_, ours), (*_, theirs) in zip(flat, padded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_only_what_is_fed_is_computed():
    """With the kernels; without them only where a quarter would be padding."""
    engine = Engine(tiny(packed=True), EngineConfig(**SIZES))
    for of, fed, rows, _ in steps(engine)[0]:
        assert rows == (fed if engine.runner._attends_flat or 4 * fed <= 3 * of else of)


@pytest.mark.parametrize(("by_kernels", "rows"), [(True, 11), (False, 12)])
def test_the_rows_of_a_step_are_known_before(by_kernels, rows):
    runner = Engine(tiny(packed=True), EngineConfig(**SIZES)).runner
    runner._attends_flat = by_kernels
    assert runner.num_rows(range(3), [1, 1, 4]) == 6
    assert runner.num_rows(range(3), [4, 4, 3]) == rows
    assert runner.num_rows(range(3), [4, 4, 4]) == 12
    assert runner.num_rows(range(3), [1, 1]) == 2, "a slot between them waits"
