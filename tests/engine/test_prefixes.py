"""Prefix reuse: nothing of a prompt is fed twice, and no token of an answer depends on it."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.engine import DoneEvent, Engine, EngineConfig, Request, SamplingParams, TokenEvent
from pasta.engine import runner as runner_module
from pasta.interpreter import Limits
from pasta.placement import prefix_digests
from tests.support.kernels import built, needs_kernels
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
CHUNK = UNRECORDED["prefill_chunk"]
# Random weights seldom open a promise by themselves.
EAGER = SamplingParams(promise_bias=14.0)
LIMITS = Limits(max_tokens=80, max_chunk_tokens=10, max_threads=5, max_depth=2)
A, B = list(range(40, 100)), list(range(140, 200))  # two prompts of text tokens, not alike


def engine(loaded=LOADED, **sizes):
    return Engine(loaded, EngineConfig(**{"num_slots": 4, "slot_tokens": 256, **UNRECORDED, **sizes}))


def ask(prompt_ids=A, **fields):
    return Request(prompt_ids=prompt_ids, **{"limits": LIMITS, "sampling": EAGER, **fields})


class Watched:
    """An engine without drafts, the number of tokens it was fed, and the logits of every row."""

    def __init__(self, loaded=LOADED, **sizes):
        self.engine = engine(loaded, **{"drafts": 0, **sizes})
        self.fed, self.logits = 0, []
        forward = self.engine.runner.forward

        def watch(slots, feeds, *step):
            self.fed += sum(len(rows) for rows in feeds.values())
            scores = forward(slots, feeds, *step)
            self.logits.append(scores.logits.clone())
            return scores

        self.engine.runner.forward = watch

    def run(self, *requests):
        """The results, and how many tokens were fed for them."""
        before = self.fed
        ids = [self.engine.submit(request) for request in requests]
        done = {}
        while self.engine.has_work:
            done |= {e.request_id: e for e in self.engine.step() if isinstance(e, DoneEvent)}
        return [done[i].outcome() for i in ids], self.fed - before


def answers(results):
    return [result.response_ids for result in results]


@functools.cache
def cold(prompt_ids, seed=None):
    sampling = EAGER if seed is None else SamplingParams(temperature=0.9, seed=seed, promise_bias=14.0)
    return engine(reuse_prefixes=False).generate(ask(prompt_ids, sampling=sampling)).response_ids


# -- what is fed ---------------------------------------------------------------------------------------


def test_the_same_prompt_again_is_not_fed_at_all():
    e = Watched()
    (first,), fed = e.run(ask())
    (again,), fed_again = e.run(ask())
    assert fed - fed_again == len(A)
    assert (first.cached_tokens, again.cached_tokens) == (0, len(A))
    assert again.response_ids == first.response_ids == cold(tuple(A))


def test_of_a_prompt_that_begins_alike_whole_chunks_are_not_fed():
    e = Watched()
    e.run(ask(A))
    (result,), fed = e.run(ask(A[:40] + B))
    assert result.cached_tokens == 40 // CHUNK * CHUNK
    assert fed == Watched(reuse_prefixes=False).run(ask(A[:40] + B))[1] - result.cached_tokens
    assert result.response_ids == cold(tuple(A[:40] + B))


def test_a_prompt_that_is_the_beginning_of_an_earlier_one_feeds_at_least_its_last_token():
    e = Watched()
    e.run(ask(A))
    (result,), _ = e.run(ask(A[: 2 * CHUNK]))
    assert result.cached_tokens == CHUNK
    assert result.response_ids == cold(tuple(A[: 2 * CHUNK]))


def test_four_turns_of_a_conversation_feed_what_is_new():
    e = Watched(slot_tokens=512)
    prompt, fed = list(A), []
    for turn in range(4):
        (result,), count = e.run(ask(prompt, parallel=False))
        fed.append(count - result.num_tokens + 1)
        # At most a chunk is lost, for the match is cut to whole ones, and the token whose logits are wanted.
        assert len(prompt) - result.cached_tokens == fed[-1]
        new = 60 if turn == 0 else 12 + CHUNK
        assert fed[-1] <= new
        prompt = [*prompt, *result.response_ids[:-1], *range(30 + turn, 40 + turn)]
    assert len(prompt) > 160


@pytest.mark.parametrize("reuse", [True, False])
def test_the_switch_turns_it_off(reuse):
    e = Watched(reuse_prefixes=reuse)
    e.run(ask())
    (again,), _ = e.run(ask())
    assert (again.cached_tokens > 0) == reuse


def test_the_answers_here_have_threads():
    assert len(engine().generate(ask()).trace.threads) > 1


@pytest.mark.slow
def test_choices_of_one_prompt_share_one_prefill():
    e = Watched(num_slots=10)
    seeds = [SamplingParams(temperature=0.9, seed=seed, promise_bias=14.0) for seed in range(10)]
    results, fed = e.run(*(ask(sampling=sampling) for sampling in seeds))
    alone = [Watched(reuse_prefixes=False).run(ask(sampling=sampling))[1] for sampling in seeds]
    assert fed == sum(alone) - 9 * len(A)
    assert answers(results) == [cold(tuple(A), seed) for seed in range(10)]
    assert [result.cached_tokens for result in results] == [0] + 9 * [len(A)]


def test_choices_of_a_prompt_shorter_than_a_chunk_share_one_prefill_too():
    e, short = Watched(num_slots=3), A[: CHUNK // 2]
    results, fed = e.run(*(ask(short) for _ in range(3)))
    assert [result.cached_tokens for result in results] == [0, len(short), len(short)]
    assert fed == 3 * Watched(reuse_prefixes=False).run(ask(short))[1] - 2 * len(short)
    assert set(answers(results)) == {cold(tuple(short))}


@pytest.mark.parametrize(("copy_s", "shared"), [(0.5, True), (1.5, False)])
def test_a_common_beginning_shorter_than_a_chunk_is_copied_where_that_costs_less_than_its_rows(
    copy_s, shared
):
    """Where rows do not depend on each other, so that the rest may be fed in other chunks."""
    begun = A[: CHUNK // 2]
    prompts = [begun + B[:20], begun + B[30:50]]
    e = Watched()
    prefixes = e.engine.prefixes
    prefixes._grain, prefixes.copy_s, prefixes._row_s = 1, copy_s, lambda: 1 / len(begun)
    results, _ = e.run(*map(ask, prompts))
    assert results[1].cached_tokens == shared * len(begun)
    assert answers(results) == [cold(tuple(prompt)) for prompt in prompts]


@needs_kernels
def test_with_the_kernels_a_common_beginning_may_end_anywhere_whatever_the_chunk():
    built()
    e = Watched(tiny(packed=True), prefill_chunk=256)
    begun = (A + B)[:80]
    for own in (A[:9], B[:9]):
        (result,), _ = e.run(ask(begun + own))
    assert result.cached_tokens == len(begun)
    assert e.engine.runner.prefilled_at_once(256) == e.engine.runner.whole_rows == 64


def test_a_copy_is_timed_where_rows_do_not_depend_on_each_other(monkeypatch):
    assert engine().prefixes.copy_s == 0.0
    monkeypatch.setattr(runner_module, "whole_rows", lambda model: 64)
    assert 0.0 < engine().prefixes.copy_s < 1.0
    assert engine(num_slots=1).prefixes.copy_s == 0.0
    assert engine(slot_tokens=8).prefixes.copy_s > 0.0


def test_what_a_row_costs_is_known_once_steps_were_measured():
    e = engine()
    assert e.prefixes._row_s() == 0.0
    for _ in range(2):
        e.drafter.cost.add(1, 0.01)
    assert e.prefixes._row_s() == pytest.approx(0.0005)


def test_more_choices_than_slots_share_one_prefill_too():
    e = Watched(num_slots=2)
    results, fed = e.run(*(ask() for _ in range(7)))
    assert fed == 7 * Watched(reuse_prefixes=False).run(ask())[1] - 6 * len(A)
    assert set(answers(results)) == {cold(tuple(A))}


@pytest.mark.slow
def test_prompts_that_begin_alike_and_come_together_share_what_they_have_in_common():
    e = Watched()
    prompts = [A + [n] * 20 for n in range(200, 204)]
    results, fed = e.run(*(ask(prompt, parallel=False) for prompt in prompts))
    shared = len(A) // CHUNK * CHUNK
    assert fed == shared + 4 * (80 - shared) + sum(result.num_tokens - 1 for result in results)
    plain = engine(reuse_prefixes=False)
    assert answers(results) == [plain.generate(ask(p, parallel=False)).response_ids for p in prompts]


def test_a_running_request_is_copied_from():
    e = Watched()
    first = e.engine.submit(ask())
    for _ in range(8):
        e.engine.step()
    assert e.engine.num_active == 1
    (again,), _ = e.run(ask())
    assert (again.cached_tokens, again.response_ids) == (len(A), cold(tuple(A)))
    assert e.engine.prefixes.counts.copied == len(A)
    assert first


def test_a_chunk_decoded_elsewhere_finds_the_prompt_that_it_sees():
    home, other = engine(slot_tokens=1024), Watched()
    other.run(ask(limits=Limits(max_tokens=1)))
    limits = Limits(max_tokens=500, max_chunk_tokens=20, max_threads=60, max_depth=2)
    home.submit(ask(place_locally=lambda live, estimate: False, limits=limits))
    forked = next(
        event for _ in range(120) for event in home.step() if getattr(event, "snapshot", None) is not None
    )
    chunk = ask((), snapshot=forked.snapshot(), lent=True, limits=forked.lent)
    (result,), _ = other.run(chunk)
    assert result.cached_tokens == len(A) // CHUNK * CHUNK
    assert result.response_ids == engine(reuse_prefixes=False).generate(chunk).response_ids


# -- who leaves what -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 12])
def test_a_cancelled_request_leaves_what_it_had_computed(steps):
    e = Watched()
    doomed = e.engine.submit(ask(A))
    for _ in range(steps):
        e.engine.step()
    e.engine.cancel(doomed)
    (result,), _ = e.run(ask(A))
    assert result.cached_tokens == (2 * CHUNK if steps == 2 else len(A))
    assert result.response_ids == cold(tuple(A))


def test_a_failed_request_leaves_nothing(monkeypatch):
    e = Watched()
    e.run(ask(A))
    forward = e.engine.runner.forward

    def overflowing(*step):
        scores = forward(*step)
        for block in (*e.engine.runner.cache.keys, *e.engine.runner.cache.values):
            block[:, : e.engine.runner.num_tokens[0]] = float("nan")
            block[:, 257 : 257 + len(A)] = float("nan")  # where the first request's prefix has moved
        return scores

    monkeypatch.setattr(e.engine.runner, "forward", overflowing)
    with pytest.raises(ArithmeticError, match="not finite"):
        e.run(ask(A + B))
    monkeypatch.setattr(e.engine.runner, "forward", forward)
    (result,), _ = e.run(ask(A + B))
    assert (result.cached_tokens, result.response_ids) == (0, cold(tuple(A + B)))


def test_whoever_waits_for_a_request_that_goes_prefills_itself():
    e = Watched()
    doomed, waiting = e.engine.submit(ask()), e.engine.submit(ask())
    e.engine.step()
    e.engine.cancel(doomed)
    done = [event for _ in range(200) for event in e.engine.step() if isinstance(event, DoneEvent)]
    (result,) = [event.outcome() for event in done]
    assert (result.request_id, result.response_ids) == (waiting, cold(tuple(A)))


def test_running_requests_stay_neighbours_where_prefixes_are_kept():
    e = engine()
    for prompt in (A, B):
        e.generate(ask(prompt))
    e.submit(ask(list(range(210, 260))))
    e.submit(ask(B + A))
    e.step()
    assert [slot is not None for slot in e._slots] == [True, True, False, False]


def test_only_requests_of_one_salt_share():
    e = Watched()
    e.run(ask(cache_salt="a"))
    (other,), _ = e.run(ask(cache_salt="b"))
    (same,), _ = e.run(ask(cache_salt="a"))
    assert (other.cached_tokens, same.cached_tokens) == (0, len(A))


def test_what_is_left_can_be_dropped():
    e = Watched()
    e.run(ask())
    e.engine.prefixes.forget()
    assert not any(block.any() for block in e.engine.runner.cache.keys)
    (result,), _ = e.run(ask())
    assert result.cached_tokens == 0


def test_tokens_looked_up_hit_and_copied_are_counted():
    e = Watched()
    e.run(ask(A))
    e.run(ask(A), ask(A), ask(B))
    counts = e.engine.prefixes.counts
    assert (counts.looked_up, counts.hit, counts.copied) == (4 * 60, 2 * 60, 60)


def test_what_is_held_is_told_by_the_names_of_its_whole_chunks_and_of_the_prompt():
    e = Watched(num_slots=1)
    names = dict(prefix_digests(A, CHUNK, "me"))
    e.run(ask(A, cache_salt="me"))
    assert set(names) == {16, 32, 48, 60}
    assert e.engine.prefixes.digests >= set(names.values())
    e.run(ask(B, cache_salt="me"))
    assert e.engine.prefixes.digests.isdisjoint(names.values())
    e.engine.prefixes.forget()
    assert not e.engine.prefixes.digests
    assert not engine(reuse_prefixes=False).prefixes.digests


# -- help changes nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3"])
def test_a_warm_prompt_has_the_logits_of_a_cold_one_to_the_last_bit(family):
    loaded, found = tiny(family), []
    for before in ([], [A + B], [A + B, A[:40] + B]):
        e = Watched(loaded=loaded)
        for prompt in before:
            e.run(ask(prompt))
        e.logits.clear()
        request = e.engine.submit(ask(A[:50] + B, parallel=False))
        while not any(isinstance(event, TokenEvent) for event in e.engine.step()):
            pass
        found.append(e.logits[-1])
        assert request
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


PIECES = [A[:30], B[:23], A[:30], list(range(210, 245))]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=4),
            st.sampled_from([None, 3]),
            st.integers(1, 40),
        ),
        min_size=2,
        max_size=5,
    ),
    st.integers(1, 4),
    st.data(),
)
def test_answers_are_those_of_an_engine_without_it(drawn, num_slots, data):
    e = engine(num_slots=num_slots)
    expected, ids, found = {}, [], {}
    for number, (pieces, seed, steps) in enumerate(drawn):
        prompt = tuple(token for piece in pieces for token in PIECES[piece])
        sampling = EAGER if seed is None else SamplingParams(temperature=0.9, seed=seed, promise_bias=14.0)
        request_id = e.submit(ask(prompt, sampling=sampling, request_id=str(number)))
        ids.append(request_id)
        expected[request_id] = cold(prompt, seed)
        for _ in range(steps):
            found |= {event.request_id: event for event in e.step() if isinstance(event, DoneEvent)}
        if data.draw(st.integers(0, 4)) == 0 and e.cancel(victim := data.draw(st.sampled_from(ids))):
            del expected[victim]
    while e.has_work:
        found |= {event.request_id: event for event in e.step() if isinstance(event, DoneEvent)}
    assert {name: event.outcome().response_ids for name, event in found.items()} == expected
