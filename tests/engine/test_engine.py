"""The engine: same tokens in every company, no copies, bounded memory, cancellation, stop strings, sampling."""

import functools

import pytest
import torch

from pasta.engine import (
    DoneEvent,
    Engine,
    EngineConfig,
    ForkEvent,
    Request,
    SamplingParams,
    TokenEvent,
)
from pasta.engine.device import DeviceState
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import parse, to_text
from tests.support.elsewhere import decode_chunks_elsewhere
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
LIMITS = Limits(max_tokens=260, max_chunk_tokens=24, max_threads=9, max_depth=3)
# Random weights seldom open a promise by themselves.
EAGER = SamplingParams(promise_bias=7.0)


def prompt(text="Tell me about France"):
    return CODEC.encode_prompt([{"role": "user", "content": text}])


def ask(text="Tell me about France", **fields):
    return Request(prompt_ids=prompt(text), **{"limits": LIMITS, "sampling": EAGER, **fields})


def engine(**sizes):
    return Engine(LOADED, EngineConfig(**{"num_slots": 4, "slot_tokens": 512, **UNRECORDED, **sizes}))


def run(e, *requests):
    """All results by request id, and all events."""
    ids = [e.submit(request) for request in requests]
    events = []
    while e.has_work:
        events += e.step()
    results = {event.request_id: event.result for event in events if isinstance(event, DoneEvent)}
    return [results[i] for i in ids], events


@functools.cache
def alone(text="Tell me about France", **fields):
    """The result of an engine that decodes nothing else, before or after. Not for tests that change how it decodes."""
    (result,), _ = run(engine(), ask(text, **fields))
    return result


TEXTS = ["Tell me about France", "x", "Count to ten and name each planet in turn", "<sync/></async>"]


def test_the_sample_has_threads_to_speak_of():
    (result,), _ = run(engine(), ask())
    assert len(result.trace.threads) > 3
    assert result.critical_path < result.num_tokens


@pytest.mark.slow
def test_greedy_tokens_do_not_depend_on_company():
    expected = [alone(text).response_ids for text in TEXTS]
    together, _ = run(engine(num_slots=4), *(ask(text) for text in TEXTS))
    two_slots, _ = run(engine(num_slots=2), *(ask(text) for text in TEXTS))
    assert [result.response_ids for result in together] == expected
    assert [result.response_ids for result in two_slots] == expected


@pytest.mark.slow
def test_a_recorded_forward_is_replayed_for_slots_that_do_not_begin_with_the_first(monkeypatch):
    short = [ask("x", limits=Limits(max_tokens=3)), ask(TEXTS[2])]
    expected = [result.response_ids for result in run(engine(trace_forward=False), *short)[0]]
    recording = engine(trace_forward=True)
    run(recording, ask())
    monkeypatch.setattr(recording.runner, "model", None)  # what is not replayed fails
    results, _ = run(recording, *short)
    assert [result.response_ids for result in results] == expected
    assert len(expected[1]) > 10 * len(expected[0])


@pytest.mark.slow
def test_greedy_tokens_do_not_depend_on_running_threads_one_by_one():
    """Each chunk is decoded on another engine and absorbed: at no time are two threads lanes of one forward."""
    free = Limits(max_tokens=500, max_chunk_tokens=20, max_threads=60, max_depth=2)
    (lanes,), _ = run(engine(slot_tokens=1024), ask(limits=free, sampling=SamplingParams(promise_bias=6.0)))
    assert len(lanes.trace.threads) > 3
    one_by_one = decode_chunks_elsewhere(
        lambda: engine(slot_tokens=1024), ask(limits=free, sampling=SamplingParams(promise_bias=6.0))
    )
    assert one_by_one.response_ids == lanes.response_ids
    assert one_by_one.critical_path == lanes.critical_path


@pytest.mark.slow
def test_sampled_tokens_do_not_depend_on_company():
    warm = SamplingParams(temperature=0.8, top_p=0.95, seed=5, promise_bias=5.0)
    expected = [alone(text, sampling=warm).response_ids for text in TEXTS]
    together, _ = run(engine(), *(ask(text, sampling=warm) for text in TEXTS))
    assert [result.response_ids for result in together] == expected


@pytest.mark.slow
def test_another_seed_gives_another_answer():
    answers = {
        run(engine(), ask(sampling=SamplingParams(temperature=1.0, seed=seed)))[0][0].response_ids
        for seed in range(3)
    }
    assert len(answers) == 3


def test_fork_and_join_move_no_cache_entry():
    e = engine(drafts=0)  # a wrong draft is fed, and its place is used again
    e.submit(ask())
    cache = e.runner.cache
    blocks = (*cache.keys, *cache.values)
    pointers, written = [block.data_ptr() for block in blocks], None
    fed = 0
    original = e.runner.forward

    def forward(slots, feeds, *step):
        nonlocal fed
        fed += sum(len(rows) for rows in feeds.values())
        return original(slots, feeds, *step)

    e.runner.forward = forward
    while e.has_work:
        before = e.runner.num_tokens[0]
        if before:
            written = e.runner.cache.keys[0][:, :before].clone()
        events = e.step()
        if written is not None and e.num_active:
            assert torch.equal(e.runner.cache.keys[0][:, :before], written)
    result = next(event.result for event in events if isinstance(event, DoneEvent))
    assert [block.data_ptr() for block in (*cache.keys, *cache.values)] == pointers
    # Every token is fed once; the end token, whose logits nobody needs, never.
    assert fed == result.prompt_tokens + result.num_tokens - 1


def test_sequential_mode_is_plain_decoding():
    (result,), _ = run(engine(drafts=0), ask(parallel=False))
    assert len(result.trace.threads) == 1
    assert result.critical_path == result.num_tokens == result.steps
    assert CODEC.special_ids.isdisjoint(result.response_ids[:-1])


@pytest.mark.slow
def test_outputs_of_random_weights_are_well_formed():
    for seed in range(8):
        (result,), _ = run(
            engine(), ask(sampling=SamplingParams(temperature=1.5, seed=seed, promise_bias=6.0))
        )
        assert parse(to_text(result.document)) == result.document


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode():
    e = engine(prefill_chunk=8)
    first = e.submit(ask(parallel=False))
    for _ in range(8):
        e.step()
    e.submit(ask("word " * 60))
    tokens = sum(
        isinstance(event, TokenEvent) and event.request_id == first for _ in range(4) for event in e.step()
    )
    assert tokens == 4


@pytest.mark.slow
def test_admission_waits_for_a_slot():
    e = engine(num_slots=1)
    for _ in range(3):
        e.submit(ask())
    e.step()
    assert (e.num_active, e.num_waiting) == (1, 2)
    while e.has_work:
        e.step()
    assert (e.num_active, e.num_waiting) == (0, 0)


def test_cancelling_frees_the_cache_between_two_steps():
    e = engine(num_slots=1)
    doomed, queued = e.submit(ask()), e.submit(ask("y"))
    for _ in range(5):
        e.step()
    assert e.cancel(doomed)
    assert not e.cancel(doomed)
    assert e.runner.num_tokens == [0]
    assert e.cancel(queued)
    assert not e.has_work


@pytest.mark.slow
def test_a_freed_slot_shows_nothing_of_its_last_request():
    fresh = run(engine(num_slots=1), ask("y"))[0][0].response_ids
    e = engine(num_slots=1)
    run(e, ask("a completely different prompt, longer than the next"))
    assert run(e, ask("y"))[0][0].response_ids == fresh


@pytest.mark.parametrize("parallel", [False, True])
def test_a_stop_string_ends_the_answer_in_reading_order(parallel):
    sampling = SamplingParams(promise_bias=5.0)
    (whole,), _ = run(engine(), ask(parallel=parallel, sampling=sampling))
    stop = whole.text[10:13]
    (cut,), _ = run(engine(), ask(parallel=parallel, sampling=SamplingParams(promise_bias=5.0, stop=(stop,))))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.steps <= whole.steps


def test_events_tell_the_whole_story():
    (result,), events = run(engine(), ask())
    assert (
        sum(isinstance(event, TokenEvent) for event in events)
        == result.num_tokens - len(result.trace.threads) + 1
    )
    forks = [event for event in events if isinstance(event, ForkEvent)]
    assert [fork.path for fork in forks] == [thread.path for thread in result.trace.threads[1:]]
    assert isinstance(events[-1], DoneEvent)


def test_running_out_of_tokens_is_a_finish_reason():
    (result,), _ = run(engine(), ask(limits=Limits(max_tokens=5)))
    assert result.finish_reason == "length"
    assert result.num_tokens == 5


@pytest.mark.parametrize("text", TEXTS)
def test_events_come_in_the_order_of_their_times_also_where_lanes_use_up_a_limit_within_a_step(text):
    limits = Limits(max_tokens=301, max_chunk_tokens=1024, max_threads=5, max_depth=4)
    _, events = run(engine(), ask(text, limits=limits))
    times = [event.time for event in events]
    assert times == sorted(times)


def test_a_prompt_longer_than_the_context_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"prompt: \d+ tokens, but the context holds 64"):
        engine(slot_tokens=64).submit(ask("word " * 100))


@pytest.mark.parametrize("token", [-1, 512])
def test_a_token_that_the_model_lacks_is_refused_before_it_ends_the_step_of_others(token):
    e = engine()
    e.submit(Request([5, 6], limits=Limits(max_tokens=3), parallel=False))
    with pytest.raises(UserError, match=f"prompt: token {token}, but the model has the tokens 0 to 511"):
        e.submit(Request([5, token, 6]))
    while e.has_work:
        events = e.step()
    assert events[-1].outcome().finish_reason == "length"


def test_a_used_request_id_is_refused():
    e = engine()
    e.submit(ask(request_id="a"))
    with pytest.raises(UserError, match="in use"):
        e.submit(ask(request_id="a"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("stop", ("",)),
        ("promise_bias", float("inf")),
    ],
)
def test_a_sampling_value_out_of_range_is_named(field, value):
    with pytest.raises(UserError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.slow
def test_top_k_one_is_greedy():
    greedy = alone(sampling=SamplingParams()).response_ids
    top = run(engine(), ask(sampling=SamplingParams(temperature=1.0, top_k=1)))[0][0].response_ids
    assert top == greedy


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_a_small_temperature_is_greedy(temperature):
    """Also one that a float32 takes for 0: it once ended in tokens that are not allowed, and stopped the engine."""
    greedy = alone(sampling=SamplingParams()).response_ids
    found = run(engine(), ask(sampling=SamplingParams(temperature=temperature)))[0][0].response_ids
    assert found == greedy


@pytest.mark.slow
def test_a_small_top_p_is_greedy():
    greedy = alone(sampling=SamplingParams()).response_ids
    top = run(engine(), ask(sampling=SamplingParams(temperature=1.0, top_p=1e-6)))[0][0].response_ids
    assert top == greedy


def spoil(e, monkeypatch, request_id, after, value=float("nan")):
    """From its ``after``-th token on, a request's logits are no numbers."""
    forward, model, count = e.runner.forward, e.runner.state._run, iter(range(1 << 30))
    places = []

    def watched(slots, feeds, *step):
        longest = max(map(len, feeds.values()))
        places[:] = [
            (number - slots.start) * longest + at
            for number in feeds
            for at, feed in enumerate(feeds[number])
            if feed.wants_logits and e._slots[number].request.request_id == request_id
        ]
        return forward(slots, feeds, *step)

    def spoilt(inputs, **options):
        logits = model(inputs, **options)[0].clone()
        for place in places:
            if next(count) >= after:
                logits.flatten(0, 1)[place] = value
        return (logits,)

    monkeypatch.setattr(e.runner, "forward", watched)
    monkeypatch.setattr(e.runner.state, "_run", spoilt)
    monkeypatch.setattr(DeviceState, "loops", False)  # steps that run together do not pass through it


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_request_whose_logits_are_no_numbers_fails_alone(monkeypatch, temperature, value):
    expected = alone(TEXTS[1]).response_ids
    e = engine()
    sampling = SamplingParams(promise_bias=7.0, temperature=temperature)
    spoil(e, monkeypatch, "bad", 7, value)
    (bad, good), events = run(e, ask(request_id="bad", sampling=sampling, logprobs=2), ask(TEXTS[1]))
    assert (bad, good.response_ids) == (None, expected)
    (failed,) = [event for event in events if isinstance(event, DoneEvent) and event.error]
    assert (failed.request_id, failed.finish_reason) == ("bad", "failed")
    assert "not finite" in str(failed.error)
    assert e.num_active == 0
    with pytest.raises(ArithmeticError, match="not finite"):
        e.generate(ask(request_id="bad"))


def test_many_requests_are_decoded_once_each_and_as_if_alone():
    requests = [
        ask(TEXTS[n % len(TEXTS)], limits=Limits(max_tokens=8 + n), request_id=str(n)) for n in range(6)
    ]
    e = engine(num_slots=2)
    most = 0

    def watched():
        nonlocal most
        for result in e.decode(requests, at_once=4):
            most = max(most, e.num_active + e.num_waiting)
            yield result

    results = {result.request_id: result.response_ids for result in watched()}
    assert results == {r.request_id: engine(num_slots=1).generate(r).response_ids for r in requests}
    assert most == 4


@pytest.mark.slow
def test_a_failed_request_leaves_nothing_that_reaches_later_ones(monkeypatch):
    """A mask does not stop a key that is not a number: its weight is 0 and the product is not a number still."""
    expected = alone(TEXTS[1]).response_ids
    e = engine(num_slots=1)
    forward = e.runner.forward

    def overflowing(*step):
        scores = forward(*step)
        for block in (*e.runner.cache.keys, *e.runner.cache.values):
            block[:, : e.runner.num_tokens[0]] = float("nan")
        return scores

    monkeypatch.setattr(e.runner, "forward", overflowing)
    with pytest.raises(ArithmeticError, match="not finite"):
        e.generate(ask())
    monkeypatch.setattr(e.runner, "forward", forward)
    for _ in range(3):
        assert e.generate(ask(TEXTS[1])).response_ids == expected


def test_a_request_that_cannot_be_admitted_fails_alone():
    """What it is told while it waits may be wrong."""
    expected = alone(TEXTS[1]).response_ids
    e = engine(num_slots=1)
    ids = [e.submit(ask(TEXTS[1])), e.submit(ask()), e.submit(ask(TEXTS[1]))]
    e.absorb(ids[1], (5,), [1, 2])
    done = {}
    while e.has_work:
        done |= {event.request_id: event for event in e.step() if isinstance(event, DoneEvent)}
    with pytest.raises(UserError, match="not decoded elsewhere"):
        done[ids[1]].outcome()
    assert [done[i].outcome().response_ids for i in (ids[0], ids[2])] == [expected] * 2
