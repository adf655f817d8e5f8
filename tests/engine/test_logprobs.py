"""A request that asks for log-probabilities gets the model's own, for every token of every thread."""

import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request, SamplingParams, TokenEvent
from pasta.interpreter import Limits
from tests.engine.test_parity import training_logits
from tests.support.models import tiny

LOADED = tiny()
PROMPT = LOADED.codec.encode_prompt([{"role": "user", "content": "Tell me about France"}])
LIMITS = Limits(max_tokens=200, max_chunk_tokens=24, max_threads=6)


def decode(*requests):
    """Each request's result and token events, all decoded together."""
    engine = Engine(LOADED, EngineConfig(num_slots=4, slot_tokens=512))
    ids = [engine.submit(request) for request in requests]
    events = []
    while engine.has_work:
        events += engine.step()
    return [
        (
            next(e.result for e in events if e.request_id == i and hasattr(e, "result")),
            [e for e in events if e.request_id == i and isinstance(e, TokenEvent)],
        )
        for i in ids
    ]


def request(**fields):
    sampling = {"promise_bias": 7.0, **fields.pop("sampling", {})}
    return Request(PROMPT, sampling=SamplingParams(**sampling), limits=LIMITS, **fields)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.3, "top_p": 0.8, "seed": 3}])
def test_they_are_a_softmax_of_the_training_forward_before_masks_bias_and_temperature(sampling):
    ((result, events),) = decode(request(logprobs=4, sampling=sampling))
    expected = training_logits(LOADED, PROMPT, list(result.response_ids))
    paths = {0: (), **{thread.id: thread.path for thread in result.trace.threads}}
    assert len(paths) > 2
    seen = dict.fromkeys(paths, 0)
    for event in events:
        truth = torch.log_softmax(expected[paths[event.thread], seen[event.thread]], dim=-1)
        seen[event.thread] += 1
        assert event.logprobs.chosen == pytest.approx(truth[event.token].item(), abs=1e-3)
        assert [value for _, value in event.logprobs.top] == pytest.approx(
            truth.topk(4).values.tolist(), abs=1e-3
        )
        assert all(
            truth[token].item() == pytest.approx(value, abs=1e-3) for token, value in event.logprobs.top
        )


def test_they_change_no_token_and_only_those_who_ask_get_them():
    (plain, without), (asked, few), (_, none) = decode(request(), request(logprobs=2), request(logprobs=0))
    assert plain.response_ids == asked.response_ids
    assert all(event.logprobs is None for event in without)
    assert all(len(event.logprobs.top) == 2 for event in few)
    assert all(event.logprobs.top == () for event in none)


def test_the_prompt_s_log_probabilities_are_those_of_decoding_it():
    """Also where an earlier request has left the same prefix."""
    prompt = LOADED.codec.encode_text("Tell me about France")
    engine = Engine(LOADED, EngineConfig(num_slots=2, slot_tokens=256, prefill_chunk=8, trace_forward=False))
    seen = []
    engine.submit(Request(prompt, limits=Limits(max_tokens=20), parallel=False, logprobs=2))
    while engine.has_work:
        seen += [event for event in engine.step() if isinstance(event, TokenEvent)]
    whole = [*prompt, *(event.token for event in seen[:-1])]
    asked = Request(
        whole, limits=Limits(max_tokens=1), parallel=False, prompt_logprobs=2, cache_salt="its own"
    )
    scored = engine.generate(asked).prompt_logprobs
    assert len(scored) == len(whole) - 1
    for found, event in zip(scored[len(prompt) - 1 :], seen, strict=False):
        assert found.chosen == pytest.approx(event.logprobs.chosen, abs=1e-4)
        assert [token for token, _ in found.top] == [token for token, _ in event.logprobs.top]
