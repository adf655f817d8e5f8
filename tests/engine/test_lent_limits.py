"""What is lent to chunks elsewhere, and what comes back of it, changes no token where limits are near."""

import pytest

from pasta.engine import DoneEvent, Engine, EngineConfig, ForkEvent, Request, SamplingParams, ThreadProgress
from pasta.interpreter import Interpreter, Limits, RepetitionDetection, lend
from pasta.lang import parse
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
CODEC = LOADED.codec
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Tell me about France"}])
SIZES = {"num_slots": 2, "slot_tokens": 512, **UNRECORDED}


def away(live, estimate):
    return False


def run(engine, forks):
    """Step while there is work; notes the chunks that leave. Returns the result, if the answer has ended."""
    result = None
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, DoneEvent):
                result = event.outcome()
            if isinstance(event, ForkEvent) and event.snapshot is not None:
                forks.append(event)
    return result


def run_apart(home, other, request):
    """Decode at ``home`` what ``other`` decodes the chunks of; returns the result, and those of the chunks."""
    forks, chunks = [], []
    request_id = home.submit(request.replace(place_locally=away))
    while (result := run(home, forks)) is None:
        fork = forks.pop()
        chunks.append(
            other.generate(
                request.replace(prompt_ids=(), snapshot=fork.snapshot(), limits=fork.lent, lent=True)
            )
        )
        home.absorb(request_id, fork.path, chunks[-1].response_ids)
    return result, chunks


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"logprobs": 0, "drafts": False}], ids=["", "log-probabilities"])
def test_what_a_chunk_that_is_taken_back_needs_is_left_to_it(fields):
    help_ = {} if fields else {"jump_forward": False, "drafts": 0}
    home = Engine(LOADED, EngineConfig(**SIZES, **help_))
    limits = Limits(max_tokens=400, max_chunk_tokens=30, max_depth=1, max_threads=12)
    request = Request(PROMPT, limits=limits, sampling=SamplingParams(promise_bias=7.0), **fields)
    expected = home.generate(request)
    request_id, forks = home.submit(request.replace(place_locally=away)), []
    taken_back = 0
    while (result := run(home, forks)) is None:
        home.adopt(request_id, forks.pop(0).path, ThreadProgress())
        taken_back += 1
    assert taken_back
    assert result.response_ids == expected.response_ids


@pytest.mark.parametrize("ended", [False, True])
def test_an_answer_that_waits_for_its_only_chunk_goes_on_where_all_its_tokens_are_cached(ended):
    engine = Engine(LOADED, EngineConfig(**{**SIZES, "prefill_chunk": 1}))
    text = '<promise topic="a" tokens="10"/><async>x</async>'
    ids = [*CODEC.encode(parse(f"One part.{text}{'' if ended else '<sync/>'}")), CODEC.eos_id]
    engine.generate(Request(PROMPT, forced=ids))  # the same answer, decoded here before
    until = [*ids[: ids.index(CODEC.control.async_open)], CODEC.eos_id if ended else CODEC.control.sync]
    progress = ThreadProgress([((), token) for token in until], {(0,): Limits(max_tokens=148, max_threads=1)})
    limits = Limits(max_tokens=250)
    request_id = engine.submit(Request(PROMPT, progress=progress, limits=limits))
    while engine.has_requests:
        assert not engine.step()
    engine.absorb(request_id, (0,), [*CODEC.encode_text("x"), CODEC.control.async_close])
    events = []
    while engine.has_requests:
        events += engine.step()
    assert events[-1].outcome().text.startswith("One part.x")


def test_a_chunk_within_what_it_was_lent_is_absorbed_in_whatever_order_its_threads_had_decoded():
    control, (word,) = CODEC.control, CODEC.encode_text("a")
    promise, limits = CODEC.encode_promise("b", 10), Limits(max_tokens=400, max_chunk_tokens=200)
    at_home = Interpreter(CODEC.grammar, limits, PROMPT)
    for token in promise:
        at_home.emit(0, token)
    lent, main = lend(at_home, 1), [*promise]
    while at_home.allowed(0).permits(word, CODEC.grammar):  # the parent writes all that it may
        at_home.emit(0, word)
        main.append(word)
    elsewhere = Interpreter.for_chunk(CODEC.grammar, lent, at_home.snapshot(1))
    for token in (*promise, *promise):
        elsewhere.emit(0, token)
    elsewhere.emit(0, control.async_close)
    elsewhere.emit(2, control.async_close)
    while elsewhere.tokens_left > 5:
        elsewhere.emit(1, word)
    elsewhere.emit(1, control.async_close)
    assert elsewhere.done
    assert elsewhere.finish_reason == "stop"
    home = Engine(LOADED, EngineConfig(**SIZES))
    progress = ThreadProgress([((), token) for token in main], {(0,): lent})
    request_id = home.submit(Request(PROMPT, limits=limits, progress=progress))
    while home.has_requests:
        home.step()
    home.absorb(request_id, (0,), elsewhere.response_ids())


def test_what_is_cut_off_does_not_depend_on_chunks_that_are_elsewhere():
    home, other = (Engine(LOADED, EngineConfig(**SIZES, drafts=0)) for _ in range(2))
    limits = Limits(
        max_tokens=400, max_chunk_tokens=12, max_threads=2, max_depth=1, max_topic_tokens=2, max_positions=140
    )
    sampling = SamplingParams(temperature=1.0, top_k=3, seed=39, promise_bias=3.0)
    request = Request(PROMPT, limits=limits, sampling=sampling)
    expected = other.generate(request)
    result, chunks = run_apart(home, other, request)
    assert all(chunk.finish_reason in ("stop", "length") for chunk in chunks)
    assert result.response_ids == expected.response_ids


@pytest.mark.slow
def test_a_chunk_elsewhere_that_repeats_itself_ends_where_it_would_end_at_home():
    home, other = (Engine(LOADED, EngineConfig(**SIZES, drafts=0)) for _ in range(2))
    detection = RepetitionDetection(4, 1, 2)
    limits = Limits(max_tokens=400, max_chunk_tokens=60, max_depth=1, repetition_detection=detection)
    ended = 0
    for number in range(4):
        prompt = CODEC.encode_prompt([{"role": "user", "content": f"Tell me about France {number}"}])
        request = Request(prompt, limits=limits, sampling=SamplingParams(promise_bias=4.0))
        expected = other.generate(request)
        result, chunks = run_apart(home, other, request)
        ended += sum(chunk.finish_reason == "repetition" for chunk in chunks)
        assert (result.response_ids, result.finish_reason) == (expected.response_ids, expected.finish_reason)
    assert ended
