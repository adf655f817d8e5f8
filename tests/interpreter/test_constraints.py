"""Constrained decoding: whatever a model writes, the response is well-formed and ends within its limits."""

import random

import pytest

from pasta.errors import UserError
from pasta.interpreter import Interpreter, Limits, RepetitionDetection, chosen_among, linearise
from pasta.lang import parse, to_text
from tests.support.tokenizers import KINDS, codec

PROMPT = [5, 6, 7]


def random_limits(rng):
    return Limits(
        max_tokens=rng.randint(1, 300),
        max_chunk_tokens=rng.choice([1, 2, 5, 60, 200]),
        max_threads=rng.randint(1, 12),
        max_depth=rng.randint(1, 4),
        max_topic_tokens=rng.randint(1, 24),
        max_positions=rng.choice([6, 60, 500, 4000]),
        repetition_detection=rng.choice([RepetitionDetection(), RepetitionDetection(3, 1, 2)]),
    )


def wild_token(rng, c):
    g = c.grammar
    return rng.choice(
        [*g.control.as_tuple(), g.control.promise, g.control.sync, c.eos_id, *g.open_ids, *g.tail.children]
        + [rng.randrange(g.vocab_size) for _ in range(6)]
    )


def permitted(rng, it, thread, token):
    """The token if it is allowed, else a random allowed one: what a logit mask does to a model."""
    constraint = it.allowed(thread)
    if constraint.permits(token, it.grammar):
        return token
    extra = sorted(constraint.extra)
    if extra and (constraint.base == "none" or rng.random() < 0.3):
        return rng.choice(extra)
    start = rng.randrange(it.grammar.vocab_size)
    order = (*range(start, it.grammar.vocab_size), *range(start))
    return next(t for t in order if constraint.permits(t, it.grammar))


def run(kind, seed):
    rng, c = random.Random(seed), codec(kind)
    limits = random_limits(rng)
    it = Interpreter(c.grammar, limits, PROMPT)
    while not it.done:
        thread = rng.choice(it.live_threads)
        it.emit(thread, permitted(rng, it, thread, wild_token(rng, c)))
    return it, limits, c


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(10))
def test_any_token_stream_ends_within_its_limits_and_is_well_formed(kind, block):
    """10,000 streams over the three kinds of tokenizer."""
    for seed in range(block * 334, (block + 1) * 334):
        it, limits, c = run(kind, seed)
        ids = it.response_ids()
        document = c.decode(ids)
        assert parse(to_text(document)) == document
        assert it.num_tokens == len(ids) <= limits.max_tokens
        assert len(it.threads) <= limits.max_threads
        assert max(t.depth for t in it.threads) <= limits.max_depth
        assert all(len(t.tokens) <= limits.max_chunk_tokens for t in it.threads[1:])
        highest = max(max(t.positions, default=0) for t in it.threads)
        assert highest < max(limits.max_positions, len(PROMPT) + 1)
        assert linearise(c.grammar, PROMPT, ids).sees[0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_token_was_chosen_among_holds_it_and_a_given_one_has_no_choice(kind):
    for seed in range(60):
        it, limits, c = run(kind, seed)
        ids = it.response_ids()
        among = chosen_among(c.grammar, limits, PROMPT, ids)
        for token, constraint in zip(ids, among, strict=True):
            assert (constraint is None) == (token == c.control.async_open)
            # The limit of all tokens is reached in the order of time.
            if constraint is not None and not it.truncated:
                assert constraint.permits(token, c.grammar)


def test_only_close_ends_an_open_promise():
    c = codec()
    it = Interpreter(c.grammar, Limits(), PROMPT)
    for token in c.encode_promise("x", 10)[:-1]:
        it.emit(0, token)
    assert it.allowed(0).extra == {c.control.close}
    assert it.allowed(0).base == "none"


def test_no_async_close_in_the_main_thread_and_no_end_of_text_in_a_chunk():
    c = codec()
    it = Interpreter(c.grammar, Limits(), PROMPT)
    assert c.control.async_close not in it.allowed(0).extra
    assert c.eos_id in it.allowed(0).extra
    for token in c.encode_promise("x", 10):
        it.emit(0, token)
    assert c.control.async_close in it.allowed(1).extra
    assert c.eos_id not in it.allowed(1).extra


@pytest.mark.parametrize("limit", [{"max_threads": 1}, {"max_tokens": 20}, {"max_positions": 30}])
def test_no_promise_opens_past_a_limit(limit):
    c = codec()
    it = Interpreter(c.grammar, Limits(**limit), PROMPT)
    assert c.control.promise not in it.allowed(0).extra


def test_depth_limits_chunks_within_chunks():
    c = codec()
    it = Interpreter(c.grammar, Limits(max_depth=1), PROMPT)
    for token in c.encode_promise("x", 10):
        it.emit(0, token)
    assert c.control.promise in it.allowed(0).extra
    assert c.control.promise not in it.allowed(1).extra


def test_sequential_decoding_has_no_tags():
    c = codec()
    it = Interpreter(c.grammar, Limits(), PROMPT, parallel=False)
    assert it.allowed(0).extra == c.eos_ids


def test_running_out_of_tokens_is_reported_as_length():
    c = codec()
    it = Interpreter(c.grammar, Limits(max_tokens=3), PROMPT)
    (token,) = c.encode_text("a")
    for t in (token, token, c.eos_id):
        it.emit(0, t)
    assert it.done
    assert it.finish_reason == "length"


def test_ending_by_itself_is_reported_as_stop():
    c = codec()
    it = Interpreter(c.grammar, Limits(max_tokens=3), PROMPT)
    it.emit(0, c.eos_id)
    assert it.finish_reason == "stop"


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "9"])
def test_a_limit_must_be_a_positive_integer(value):
    with pytest.raises(UserError, match="max_depth"):
        Limits(max_depth=value)


def test_a_limit_of_depth_is_at_most_a_document_s():
    assert Limits(max_depth=100).max_depth == 100
    with pytest.raises(UserError, match="max_depth: 101, expected at most 100"):
        Limits(max_depth=101)
