"""Threads that run ahead of others change nothing, also where a limit that all of them share cuts the response."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.interpreter import (
    ConstraintError,
    Fork,
    Interpreter,
    Limits,
    Mode,
    ReadingOrder,
    RepetitionDetection,
    copy_until,
    emit_text,
    forced_token,
    may_emit,
    may_emit_text,
    turn,
)
from pasta.interpreter.lending import allowed_freely
from tests.support.tokenizers import KINDS, codec

C = codec()
PROMPT = [5, 6, 7]
TEXT_IDS = [token for token, text in enumerate(C.grammar.text_mask) if text][:40]
TOPIC_IDS = [token for token in TEXT_IDS if C.grammar.topic_mask[token]][:10]
LIMITS = st.builds(
    Limits,
    max_tokens=st.integers(1, 400),
    max_chunk_tokens=st.sampled_from([5, 40, 200]),
    max_threads=st.integers(1, 16),
    max_depth=st.integers(1, 3),
    max_topic_tokens=st.integers(1, 8),
    max_positions=st.sampled_from([60, 4000]),
    repetition_detection=st.sampled_from(
        [RepetitionDetection(), RepetitionDetection(4, 1, 2), RepetitionDetection(max_same_topic=1)]
    ),
)


class Model:
    """Chooses each token by its thread and step alone, as a model with keyed noise does: the first in an order of
    preference that is allowed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.weights = [
            rng.choice([4, 8, 16]),
            rng.choice([0, 1, 2]),
            rng.choice([0, 1]),
            rng.choice([0.1, 0.5, 1]),
        ]

    def choose(self, it: Interpreter, thread: int) -> int:
        t, allowed = it.threads[thread], it.allowed(thread)
        rng = random.Random(f"{self.seed}|{t.path}|{len(t.tokens)}")
        control = C.control
        kinds = [
            rng.choice(TEXT_IDS),
            control.promise,
            control.sync,
            control.async_close if t.is_chunk else C.eos_id,
        ]
        scores = [rng.random() * weight for weight in self.weights]
        wishes = [kind for _, kind in sorted(zip(scores, kinds, strict=True), reverse=True)]
        if allowed.base == "topic" or allowed.base == "none":
            tails = sorted(allowed.extra, key=lambda token: rng.random())
            topic = [rng.choice(TOPIC_IDS)] if allowed.base == "topic" else []
            wishes = [*wishes, *(topic + tails if rng.random() < 0.6 else tails + topic)]
        return next(token for token in wishes if allowed.permits(token, C.grammar))


def start(limits: Limits) -> Interpreter:
    return Interpreter(C.grammar, limits, PROMPT)


def outcome(it: Interpreter):
    return it.response_ids(), it.finish_reason, it.critical_path, it.num_tokens


def in_lockstep(limits: Limits, model: Model) -> Interpreter:
    """Each step, every running thread emits a token."""
    it = start(limits)
    while not it.done:
        for t in sorted((t for t in it.threads if t.running), key=turn):
            it.emit(t.id, model.choose(it, t.id))
    return it


def in_random_order(limits: Limits, model: Model, seed: int, watch=None) -> tuple[Interpreter, int]:
    """Threads emit in any order that ``may_emit`` allows, some of them in bursts; and how often not in turn."""
    rng, it, ahead = random.Random(seed), start(limits), 0
    eager = rng.random()
    while not it.done:
        running = sorted((t for t in it.threads if t.running), key=turn)
        t = running[-1] if rng.random() < eager else rng.choice(running)
        for _ in range(rng.choice([1, 1, 4, 30])):
            if not t.running or not may_emit(it, t.id):
                break
            ahead += t is not min((u for u in it.threads if u.running), key=turn)
            actions = it.emit(t.id, model.choose(it, t.id))
            if watch:
                watch(it, t, actions)
    return it, ahead


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(LIMITS, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_running_ahead_changes_nothing(limits, model_seed, order_seed):
    model = Model(model_seed)
    ahead, _ = in_random_order(limits, model, order_seed)
    assert outcome(ahead) == outcome(in_lockstep(limits, model))


@settings(max_examples=50, deadline=None)
@given(LIMITS, st.integers(0, 1 << 30))
def test_the_first_thread_in_turn_may_always_emit(limits, model_seed):
    """``in_random_order`` would not end otherwise."""
    model, it = Model(model_seed), start(limits)
    while not it.done:
        first = min((t for t in it.threads if t.running), key=turn)
        assert may_emit(it, first.id)
        it.emit(first.id, model.choose(it, first.id))
    assert outcome(it) == outcome(in_lockstep(limits, model))


@settings(max_examples=50, deadline=None)
@given(LIMITS, st.integers(0, 1 << 30), st.integers(0, 1 << 30), st.integers(0, 60))
def test_a_response_cut_where_it_is_read_is_the_same_however_far_threads_have_run(
    limits, model_seed, order_seed, place
):
    model, order, read, cuts = Model(model_seed), ReadingOrder(), [], []

    def watch(it, t, actions):
        for action in actions:
            if isinstance(action, Fork):
                order.fork(action.thread, action.child)
        order.text(t.id, (t.id, len(t.tokens)))
        if not t.running and t.mode != Mode.WAITING:
            order.finish(t.id)
        read.extend(order.take_parts())
        if len(read) > place and not cuts:
            thread, count = read[place]
            cuts.append((it.threads[thread].path, count, copy_until(it, thread, count)))

    in_random_order(limits, model, order_seed, watch)
    whole = in_lockstep(limits, model)
    for path, count, found in cuts:
        thread = next(t.id for t in whole.threads if t.path == path)
        assert outcome(found) == outcome(copy_until(whole, thread, count))
        assert found.response_ids() == whole.response_ids()[: len(found.response_ids())]


@pytest.mark.slow
def test_threads_run_ahead_where_limits_are_far_and_limits_cut_answers():
    """The tests above meet both cases."""
    wide = Limits(max_tokens=2000)
    assert max(in_random_order(wide, Model(seed), seed)[1] for seed in range(20)) > 100
    short = [in_lockstep(Limits(max_tokens=150), Model(seed)) for seed in range(100)]
    assert sum(it.truncated and len(it.threads) > 2 for it in short) > 20


def test_without_the_bound_a_limit_would_change_answers():
    """The check can fail: threads that run ahead at will reach a limit in another order."""
    changed = 0
    for seed in range(40):
        limits, model, rng, it = (
            Limits(max_tokens=150, max_topic_tokens=4),
            Model(seed),
            random.Random(seed),
            None,
        )
        it = start(limits)
        while not it.done:
            thread = rng.choice(it.live_threads)
            it.emit(thread, model.choose(it, thread))
        changed += outcome(it) != outcome(in_lockstep(limits, model))
    assert changed > 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_promises_opening_and_closing_are_forced(kind):
    c = codec(kind)
    it = Interpreter(c.grammar, Limits(), PROMPT)
    free, forced = [], []
    for token in c.encode_promise("drinks", 20):
        (forced if forced_token(it, 0) == token else free).append(token)
        it.emit(0, token)
    assert forced[: len(c.grammar.open_ids)] == list(c.grammar.open_ids)
    assert forced[-1] == c.control.close
    assert c.decode_text(free[1:]).startswith("drinks")
    assert forced_token(it, 0) is None


def test_an_end_that_a_limit_forces_is_a_step_like_any_other():
    it = Interpreter(C.grammar, Limits(max_tokens=2), PROMPT)
    it.emit(0, TEXT_IDS[0])
    assert it.allowed(0).extra == {C.eos_id}
    assert forced_token(it, 0) is None


def test_beside_a_lent_chunk_a_thread_chooses_as_if_there_were_no_limit():
    limits = Limits(max_tokens=1, max_threads=1)
    it = Interpreter(C.grammar, limits, PROMPT)
    free = Interpreter(C.grammar, Limits(max_tokens=1 << 30, max_threads=1 << 30), PROMPT)
    assert allowed_freely(it, 0) == free.allowed(0)
    assert it.limits == limits


ROOMY = st.builds(
    Limits,
    max_tokens=st.integers(1, 3000),
    max_chunk_tokens=st.sampled_from([40, 1000]),
    max_threads=st.integers(1, 64),
    max_depth=st.integers(1, 3),
    repetition_detection=st.sampled_from(
        [RepetitionDetection(), RepetitionDetection(6, 1, 4), RepetitionDetection(max_same_topic=1)]
    ),
)


@settings(max_examples=150, deadline=None)
@given(ROOMY, st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 12))
def test_text_of_several_steps_is_recorded_as_token_by_token(limits, seed, begun, count):
    """Where ``may_emit_text``, neither what a thread may emit nor whether it may changes from token to token."""
    model, one, at_once = Model(seed), start(limits), start(limits)
    for _ in range(begun):
        if not one.live_threads:
            break
        for thread in sorted(one.live_threads, key=lambda thread: turn(one.threads[thread])):
            token = model.choose(one, thread)
            for it in (one, at_once):
                it.emit(thread, token, 0.5)
    threads = one.live_threads
    if not threads or not may_emit_text(one, threads, count):
        return
    allowed, times = [one.allowed(thread) for thread in threads], [float(step) for step in range(count)]
    text = random.Random(seed).choices(TEXT_IDS[:2], k=count)
    for at in range(count):
        for thread, constraint in zip(threads, allowed, strict=True):
            assert one.allowed(thread) is constraint
            assert may_emit(one, thread)
            assert one.emit(thread, text[at], times[at]) == ()
    for thread in threads:
        emit_text(at_once, thread, text, times)
    assert at_once.threads == one.threads
    assert (at_once.num_tokens, at_once.tokens_left) == (one.num_tokens, one.tokens_left)
    assert [at_once.allowed(thread) for thread in threads] == [one.allowed(thread) for thread in threads]


def test_no_tag_is_recorded_as_text():
    it = start(Limits())
    before = outcome(it)
    with pytest.raises(ConstraintError, match="has no place in the text of thread 0"):
        emit_text(it, 0, [TEXT_IDS[0], C.control.promise], [0.0, 1.0])
    assert outcome(it) == before
