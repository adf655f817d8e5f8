"""Chunks of an answer that another engine decodes: what they are lent, handed back, taken over, continued."""

import functools
import itertools
from dataclasses import replace

import pytest

from pasta.engine import (
    DoneEvent,
    Engine,
    EngineConfig,
    EngineFull,
    ForkEvent,
    Request,
    SamplingParams,
    ThreadProgress,
    TokenEvent,
)
from pasta.engine.ngrams import CONTEXTS, Ngrams
from pasta.errors import UserError
from pasta.interpreter import Limits, Mode
from pasta.lang import Document, render
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
LIMITS = Limits(max_tokens=900, max_chunk_tokens=20, max_threads=12, max_depth=2)
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Tell me about France"}])


def ask(**fields):
    sampling = SamplingParams(promise_bias=7.0, stop=fields.pop("stop", ()))
    return Request(**{"prompt_ids": PROMPT, "limits": LIMITS, "sampling": sampling, **fields})


def engine(**sizes):
    return Engine(LOADED, EngineConfig(**{"num_slots": 2, "slot_tokens": 1024, **UNRECORDED, **sizes}))


@functools.cache
def undisturbed(stop=()):
    """The result of an engine that decodes every chunk itself."""
    return engine().generate(ask(stop=stop))


PLAIN = {"jump_forward": False, "drafts": 0}


def finish(e, request_id, on_fork=None):
    while e.has_work:
        for event in e.step():
            if isinstance(event, DoneEvent) and event.request_id == request_id:
                return event.result
            if on_fork and isinstance(event, ForkEvent) and event.snapshot is not None:
                on_fork(event)
    raise AssertionError("the engine has nothing to do, and the request is not done")


def elsewhere(fork, request, **sizes):
    """The chunk's tokens as another engine decodes it, within what it was lent."""
    chunk = request.replace(
        prompt_ids=(),
        snapshot=fork.snapshot(),
        sampling=replace(request.sampling, stop=()),  # a stop string is one of the whole text
        limits=fork.lent,
        lent=True,
        place_locally=None,
        request_id="",
    )
    return engine(**sizes).generate(chunk)


def away(live, estimate):
    return False


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [300, 450, 700])
def test_a_chunk_that_comes_back_late_has_room_though_its_parent_used_all_it_could(max_tokens):
    limits = Limits(max_tokens=max_tokens, max_chunk_tokens=40, max_threads=6, max_depth=3)
    request, home, forks = ask(limits=limits, place_locally=away), engine(), []
    request_id = home.submit(request)
    while home.has_work:  # until the parent has nothing left to say, or ends and waits
        forks += [e for e in home.step() if isinstance(e, ForkEvent) and e.snapshot is not None]
    assert forks
    for fork in forks:
        chunk = elsewhere(fork, request)
        assert chunk.num_tokens <= fork.lent.max_tokens
        home.absorb(request_id, fork.path, chunk.response_ids)
    result = finish(home, request_id, lambda fork: home.adopt(request_id, fork.path, ThreadProgress()))
    assert result.num_tokens <= max_tokens
    assert len(result.trace.threads) <= 6
    assert result.document is not None


def come_back_late(home, request, **sizes):
    """The request's result where a chunk comes back only when its home has nothing else to do, the last one first."""
    request_id, forks, short = home.submit(request), [], 0
    while True:
        while home.has_work:
            for event in home.step():
                if isinstance(event, DoneEvent):
                    return event.result, short
                if isinstance(event, ForkEvent) and event.snapshot is not None:
                    forks.append(event)
        fork = forks.pop()
        chunk = elsewhere(fork, request, **sizes)
        if chunk.finish_reason == "short":
            short += 1
            home.adopt(request_id, fork.path, ThreadProgress(order_of(chunk, root=fork.path)))
        else:
            home.absorb(request_id, fork.path, chunk.response_ids)


@pytest.mark.slow
@pytest.mark.parametrize("max_threads", [9, 12, 64])
def test_what_is_lent_does_not_show_in_the_text(max_threads):
    request = ask(limits=replace(LIMITS, max_threads=max_threads))
    expected = engine().generate(request)
    assert len(expected.trace.threads) > 5, (
        "its parent wants more threads, and tokens, than are left meanwhile"
    )
    late, short = come_back_late(engine(), request.replace(place_locally=away))
    assert late.response_ids == expected.response_ids
    assert short == 0


@pytest.fixture
def guesses(every_draft, monkeypatch):
    """Drafts are the next tokens of a known answer, of which every so manieth is wrong."""

    def know(result, wrong):
        known = {thread.path: list(thread.token_ids) for thread in result.trace.threads}

        def following(self, t, most):
            at, own = len(t.tokens), known.get(t.path, [])
            found = [token ^ (place % wrong == 0) for place, token in enumerate(own)]
            return found[at : at + most], CONTEXTS[0]

        monkeypatch.setattr(Ngrams, "following", following)

    return know


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "max_threads"), [(0.0, 9), (0.0, 64), (0.8, 64)])
def test_help_changes_nothing_around_chunks_that_are_decoded_elsewhere(guesses, temperature, max_threads):
    """Near the limit of threads and far from it."""
    sampling = SamplingParams(promise_bias=7.0, temperature=temperature, seed=4)
    request = ask(limits=replace(LIMITS, max_threads=max_threads)).replace(sampling=sampling)
    expected = engine(**PLAIN).generate(request)
    assert len(expected.trace.threads) > 5
    guesses(expected, wrong=7)
    home = engine(drafts=4)
    late, _ = come_back_late(home, request.replace(place_locally=away), drafts=4)
    assert (late.response_ids, late.critical_path) == (expected.response_ids, expected.critical_path)
    assert home.drafter.num_accepted > 0


def forks_of(request, **sizes):
    home, forks = engine(**sizes), []
    home.submit(request.replace(place_locally=away))
    while home.has_work:
        forks += [e for e in home.step() if isinstance(e, ForkEvent) and e.snapshot is not None]
    return forks


def test_a_chunk_that_is_decoded_elsewhere_has_drafts(guesses):
    request = ask(limits=replace(LIMITS, max_depth=1))
    fork = forks_of(request)[0]
    plain = elsewhere(fork, request, **PLAIN)
    assert plain.steps == plain.critical_path > 8
    guesses(plain, wrong=100)
    helped = elsewhere(fork, request, drafts=4, jump_forward=False)
    assert helped.response_ids == plain.response_ids
    assert helped.steps < 0.5 * plain.steps


@pytest.mark.slow
def test_tokens_that_the_grammar_forces_cost_no_step_in_a_chunk_that_is_decoded_elsewhere():
    request = ask(limits=replace(LIMITS, max_chunk_tokens=60, max_threads=60))
    for fork in forks_of(request):
        plain = elsewhere(fork, request, **PLAIN)
        if len(plain.trace.threads) > 1 and plain.finish_reason != "short":
            break
    helped = elsewhere(fork, request, drafts=0)
    assert helped.response_ids == plain.response_ids
    assert helped.steps < plain.steps


@pytest.mark.slow
def test_tokens_that_the_grammar_forces_cost_no_step_while_chunks_are_decoded_elsewhere():
    """The main thread makes its promises as fast as where all chunks are at home."""

    def steps(**sizes):
        home, forked = engine(**sizes), []
        home.submit(ask(place_locally=away))
        while home.has_work:
            forked += [e.step for e in home.step() if isinstance(e, ForkEvent)]
        return forked

    plain, helped = steps(**PLAIN), steps(drafts=0)
    assert len(plain) == len(helped) > 2
    assert helped[-1] - helped[0] < plain[-1] - plain[0]


@pytest.mark.slow
def test_a_stop_string_in_a_chunk_that_comes_back_ends_the_answer():
    first = next(iter(undisturbed().document.chunks()))
    stop = (render(Document(first.items))[5:9],)
    expected = undisturbed(stop)
    late, _ = come_back_late(engine(), ask(stop=stop, place_locally=away))
    assert (late.text, late.finish_reason) == (expected.text, "stop")


def test_a_chunk_that_needs_more_than_it_was_lent_is_given_back_and_goes_on():
    # A chunk wants a chunk inside it, and was lent no thread for one.
    limits = Limits(max_tokens=980, max_chunk_tokens=60, max_threads=15, max_depth=2, max_positions=150)
    expected = engine().generate(ask(limits=limits))
    assert max(len(thread.path) for thread in expected.trace.threads) == 2
    late, short = come_back_late(engine(), ask(limits=limits, place_locally=away))
    assert late.response_ids == expected.response_ids
    assert short > 0


def test_a_chunk_stays_where_the_limits_have_too_little_to_lend():
    home, forks = engine(), []
    request = ask(limits=Limits(max_tokens=100, max_chunk_tokens=20), place_locally=away)
    while_here = finish(home, home.submit(request), forks.append)
    assert not forks
    assert while_here.response_ids == engine().generate(request.replace(place_locally=None)).response_ids


@pytest.mark.slow
def test_a_chunk_that_no_other_engine_takes_is_decoded_here_after_all():
    expected, home, adopted = undisturbed(), engine(), []
    request_id = home.submit(ask(place_locally=away))

    def adopt(fork):
        adopted.append(fork.path)
        home.adopt(request_id, fork.path, ThreadProgress())

    assert finish(home, request_id, adopt).response_ids == expected.response_ids
    assert adopted


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 5, 12])
def test_a_chunk_goes_on_here_from_where_it_had_come_elsewhere(tokens):
    expected, home = undisturbed(), engine()
    request_id = home.submit(ask(place_locally=away))

    def take_over(fork):
        chunk = elsewhere(fork, ask())
        start = order_of(chunk, root=fork.path)[:tokens]
        if len(start) < len(order_of(chunk, root=fork.path)):
            home.adopt(request_id, fork.path, ThreadProgress(start))
        else:
            home.absorb(request_id, fork.path, chunk.response_ids)

    assert finish(home, request_id, take_over).response_ids == expected.response_ids


def order_of(result, root=()):
    """A result's tokens in an order in which they could have been decoded: step by step."""
    rows = [
        (step, thread.path, token)
        for thread in result.trace.threads
        for step, token in zip(thread.steps, thread.token_ids, strict=True)
    ]
    assert all(path[: len(root)] == root for _, path, _ in rows)
    return [(path, token) for _, path, token in sorted(rows, key=lambda row: row[0])]


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_an_answer_goes_on_from_any_of_its_tokens_on_another_engine(stops):
    text = undisturbed().text
    stop = (text[len(text) // 2 :][:4],) if stops else ()
    expected, first = undisturbed(stop), engine()
    request_id = first.submit(ask(stop=stop))
    decoded, paths = [], {0: ()}
    while first.has_work:
        for event in first.step():
            if isinstance(event, ForkEvent):
                paths[event.child] = event.path
            if isinstance(event, TokenEvent):
                decoded.append((paths[event.thread], event.token))
    for cut in itertools.chain(range(0, len(decoded) - 1, 60), [1, len(decoded) - 1]):
        result = engine().generate(ask(stop=stop, progress=ThreadProgress(tuple(decoded[:cut]))))
        assert (result.text, result.response_ids) == (expected.text, expected.response_ids)
    assert request_id


@pytest.mark.slow
def test_an_answer_goes_on_on_another_engine_while_its_chunks_are_still_elsewhere():
    expected, first = undisturbed(), engine()
    first.submit(ask(place_locally=away))
    decoded, paths, forks = [], {0: ()}, []
    while first.has_work and len(forks) < 2:
        for event in first.step():
            if isinstance(event, ForkEvent):
                paths[event.child] = event.path
                forks += [event] if event.snapshot is not None else []
            if isinstance(event, TokenEvent):
                decoded.append((paths[event.thread], event.token))
    second = engine(num_slots=1)
    busy = second.submit(ask())  # what comes back before the answer has its slot must not be lost
    progress = ThreadProgress(tuple(decoded), {fork.path: fork.lent for fork in forks})
    request_id = second.submit(ask(progress=progress, place_locally=None))
    for fork in forks:
        second.absorb(request_id, fork.path, elsewhere(fork, ask()).response_ids)
    finish(second, busy)
    assert finish(second, request_id).response_ids == expected.response_ids


@pytest.mark.slow
def test_an_answer_that_lacks_only_chunks_from_elsewhere_takes_no_steps_on_another_engine():
    """Its main thread had ended before its home was lost: the steps and times are this answer's, not the engine's."""
    first, decoded, forks = engine(), [], []
    request_id = first.submit(ask(place_locally=away))
    while True:
        while first.has_work:
            for event in first.step():
                forks += [event] if isinstance(event, ForkEvent) and event.lent is not None else []
                decoded += [(event.path, event.token)] if isinstance(event, TokenEvent) else []
        if first._slots[0].interpreter.threads[0].mode == Mode.ENDED:
            break
        chunk = elsewhere(fork := forks.pop(0), ask())
        decoded += order_of(chunk, root=fork.path)
        first.absorb(request_id, fork.path, chunk.response_ids)
    second = engine()
    second.generate(ask(parallel=False, limits=Limits(max_tokens=50)))
    progress = ThreadProgress(tuple(decoded), {fork.path: fork.lent for fork in forks})
    request_id = second.submit(ask(progress=progress))
    for fork in forks:
        second.absorb(request_id, fork.path, elsewhere(fork, ask()).response_ids)
    result = finish(second, request_id)
    assert result.response_ids == undisturbed().response_ids
    assert result.steps == 0
    assert 0 <= result.queue_s <= result.ttft_s == result.total_s


@pytest.mark.slow
def test_answers_go_on_around_one_that_waits_for_its_chunks():
    """The waiting one has more segments than those that decode, and its slot lies between theirs."""
    plain = ask(parallel=False, limits=replace(LIMITS, max_tokens=250))
    alone = engine().generate(plain).response_ids
    home, forks = engine(num_slots=3), []
    around = [home.submit(plain.replace(request_id="before"))]
    waits = home.submit(ask(place_locally=away, limits=replace(LIMITS, max_positions=150)))
    around.append(home.submit(plain.replace(request_id="after")))
    results = {}
    while home.has_work:
        for event in home.step():
            forks += [event] if isinstance(event, ForkEvent) else []
            if isinstance(event, DoneEvent):
                results[event.request_id] = event.result.response_ids
    assert forks
    assert len(alone) > 150, "they go on after it has begun to wait"
    assert results == dict.fromkeys(around, alone)
    assert home.cancel(waits)


def test_a_chunk_does_not_wait_for_a_slot():
    home, other, forks = engine(), engine(num_slots=1), []
    request_id = home.submit(ask(place_locally=away))
    while not forks:
        forks = [e for e in home.step() if isinstance(e, ForkEvent)]
    other.submit(ask())
    with pytest.raises(EngineFull):
        other.submit(ask(prompt_ids=(), snapshot=forks[0].snapshot, limits=forks[0].lent))
    with pytest.raises(UserError, match="not decoded elsewhere"):
        home.absorb(request_id, (99,), [])


def test_an_answer_that_takes_a_chunk_back_does_not_wait_for_the_prompts_of_others():
    """None of its threads decodes until the chunk is fed; the prompts have no answer yet that could stand still."""
    e = engine(num_slots=4, reuse_prefixes=False, **PLAIN)
    request = ask(place_locally=away, request_id="begun")
    e.submit(request)
    fork = next(event for _ in range(200) for event in e.step() if isinstance(event, ForkEvent))
    chunk = elsewhere(fork, request).response_ids
    for number in range(3):
        e.submit(Request([40 + number] * 400, parallel=False, limits=LIMITS))
    e.step()
    e.absorb("begun", fork.path, chunk)
    steps = 1
    while not any(isinstance(event, TokenEvent) and event.request_id == "begun" for event in e.step()):
        steps += 1
    assert steps <= -(-(len(chunk) + 2) // UNRECORDED["prefill_chunk"])
