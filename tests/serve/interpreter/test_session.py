"""A session shows in reading order what its tokens say, and arrives at the engine's own result."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.linearise import without_tags
from pasta.engine import DoneEvent, Engine, EngineConfig, ForkEvent, Request, SamplingParams, TokenEvent
from pasta.interpreter import Limits
from pasta.lang import parse, render, to_text
from serve.interpreter.session import Session, StopFilter
from serve.observe.trace import PlacementEvent
from serve.wire import Decoded
from tests.support.models import tiny

LOADED = tiny()
CODEC = LOADED.codec
LIMITS = Limits(max_tokens=260, max_chunk_tokens=24, max_threads=9, max_depth=3)
PROMPT = CODEC.encode_prompt([{"role": "user", "content": "Tell me about France"}])


def decode(**fields):
    """The engine's result, and its events."""
    sampling = fields.pop("sampling", SamplingParams(promise_bias=7.0))
    engine = Engine(LOADED, EngineConfig(num_slots=1, slot_tokens=512))
    engine.submit(Request(prompt_ids=PROMPT, limits=LIMITS, sampling=sampling, **fields))
    events = []
    while engine.has_work:
        events += engine.step()
    assert isinstance(events[-1], DoneEvent)
    return events[-1].result, events


def follow(result, events, size=3, result_tokens=None, **options):
    """Everything a session gives out for these events, fed in batches, and its final object."""
    session = Session(CODEC, PROMPT, LIMITS, **{"parallel": True, "wants_events": True, **options})
    items = [((e.path, e.token, e.time), e.logprobs) for e in events if isinstance(e, TokenEvent)]
    tokens = [(*item, (seen.chosen, seen.top)) if seen else item for item, seen in items]
    progress = [session.feed(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    progress.append(session.rest())
    decoded = Decoded(result.finish_reason, result.steps, result.queue_s, result.ttft_s, result.total_s)
    finished = session.finish(decoded, wants_document=True)
    if result_tokens is not None:
        result_tokens += [t for p in progress for t in p.logprobs]
    return "".join(p.text for p in progress), [e for p in progress for e in p.events], finished


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_session_arrives_at_the_engine_s_result(size):
    result, events = decode()
    text, seen, finished = follow(result, events, size)
    assert len(result.trace.threads) > 3
    assert text == result.text == render(result.document)
    assert finished.pasta["document"] == to_text(result.document)
    assert finished.pasta["threads"] == len(result.trace.threads)
    assert finished.pasta["critical_path"] == result.critical_path
    assert finished.pasta["tokens"] == result.num_tokens
    assert (finished.prompt_tokens, finished.completion_tokens) == (len(PROMPT), result.num_tokens - 1)
    forks = [(e.thread, e.child, e.topic, e.estimate) for e in events if isinstance(e, ForkEvent)]
    assert [
        (e["thread"], e["child"], e["topic"], e["estimate"]) for e in seen if e["type"] == "fork"
    ] == forks
    assert sum(e["type"] == "token" for e in seen) == sum(isinstance(e, TokenEvent) for e in events)


def test_a_session_counts_the_tokens_so_far():
    result, events = decode()
    tokens = [(e.path, e.token, e.time) for e in events if isinstance(e, TokenEvent)]
    session = Session(CODEC, PROMPT, LIMITS, parallel=True)
    counts = [session.feed([item]).completion_tokens for item in tokens]
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] == session.rest().completion_tokens == result.num_tokens - 1


@pytest.mark.parametrize("stopped", [True, False])
def test_no_count_of_tokens_is_above_a_later_one_where_a_stop_string_may_end_the_answer(stopped):
    plain, events = decode()
    stop = (plain.text[60:66] if stopped else "no such text",)
    sampling = SamplingParams(promise_bias=7.0, stop=stop)
    tokens = [(e.path, e.token, e.time) for e in events if isinstance(e, TokenEvent)]
    session = Session(CODEC, PROMPT, LIMITS, parallel=True, sampling=sampling)
    counts = [session.feed([item]).completion_tokens for item in tokens if not session.ended]
    counts.append(session.rest().completion_tokens)
    finished = session.finish(Decoded("stop", 9, 0.0, 0.1, 1.0), wants_document=False)
    assert counts == sorted(counts)
    assert len(set(counts)) > 20
    assert counts[-1] == finished.completion_tokens
    assert (finished.completion_tokens < plain.num_tokens - 1) == stopped


def test_a_trace_has_a_track_for_each_thread_and_the_wait_is_in_the_timings():
    result, events = decode()
    session = Session(CODEC, PROMPT, LIMITS, parallel=True)
    session.feed((e.path, e.token, e.time) for e in events if isinstance(e, TokenEvent))
    decoded = Decoded(result.finish_reason, result.steps, 0.1, 0.2, 1.0, 0.01)
    placed = [PlacementEvent((0,), "spill", 0.3, "decoder-2")]
    pasta = session.finish(decoded, wants_document=False, trace_of="r-1", placement_events=placed).pasta
    tracks = [e["args"]["name"] for e in pasta["trace"]["traceEvents"] if e["name"] == "thread_name"]
    forks = [e for e in events if isinstance(e, ForkEvent)]
    assert sorted(tracks) == sorted(["main thread", *(e.topic for e in forks)])
    assert [e["args"] for e in pasta["trace"]["traceEvents"] if e["name"] == "spill"] == [
        {"replica": "decoder-2"}
    ]
    assert pasta["timings"]["sync_wait_ms"] >= 0
    assert "trace" not in session.finish(decoded, wants_document=False).pasta


def test_the_parts_of_each_thread_s_text_make_up_its_part_of_the_document():
    result, events = decode()
    _, seen, finished = follow(result, events)
    chunks = list(parse(finished.pasta["document"]).chunks())
    assert chunks
    texts = [
        "".join(e.get("text", "") for e in seen if e["thread"] == thread) for thread in range(1 + len(chunks))
    ]
    assert sorted(map(len, texts[1:])) == sorted(len(own_text(chunk)) for chunk in chunks)


def own_text(chunk):
    return "".join(item.text for item in chunk.items if hasattr(item, "text"))


def test_a_sequential_answer_has_one_thread_and_no_speedup():
    result, events = decode(parallel=False)
    text, _, finished = follow(result, events, parallel=False)
    assert text == result.text
    assert finished.pasta["mode"] == "sequential"
    assert (finished.pasta["threads"], finished.pasta["theoretical_speedup"]) == (1, 1.0)


def test_speedup_is_the_time_of_sequential_steps_over_the_time_it_took():
    result, events = decode()
    session = Session(CODEC, PROMPT, LIMITS, parallel=True)
    session.feed([(e.path, e.token, e.time) for e in events if isinstance(e, TokenEvent)])
    decoded = Decoded("stop", result.steps, queue_s=1.0, ttft_s=1.5, total_s=2.5, step_s=0.01)
    figures = session.finish(decoded, wants_document=False).pasta
    estimate_s = 0.5 + (figures["sequential_tokens"] - 1) * 0.01
    assert figures["timings"]["sequential_estimate_ms"] == pytest.approx(1000 * estimate_s)
    assert figures["speedup"] == pytest.approx(estimate_s / 1.5, abs=1e-3)
    unknown = session.finish(replace(decoded, step_s=0.0), wants_document=False).pasta
    assert (unknown["speedup"], unknown["timings"]["sequential_estimate_ms"]) == (None, None)


@pytest.mark.slow
def test_a_stop_string_ends_the_text_where_the_engine_ends_it():
    whole, _ = decode()
    stop = whole.text[len(whole.text) // 2 :][:3]
    result, events = decode(sampling=SamplingParams(promise_bias=7.0, stop=(stop,)))
    text, _, finished = follow(result, events, sampling=SamplingParams(stop=(stop,)))
    assert text == result.text == whole.text[: whole.text.index(stop)]
    assert (finished.finish_reason, finished.pasta["document"]) == ("stop", None)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_tokens_of_the_text_are_listed_in_reading_order(size):
    result, events = decode(logprobs=2)
    tokens = []
    text, _, _ = follow(result, events, size, tokens)
    # Reading order is the order of storage; tags are no text.
    assert [token.token for token in tokens] == [
        CODEC.decode_text([i]) for i in without_tags(CODEC, result.response_ids) if i not in CODEC.special_ids
    ]
    assert len(tokens) > 10
    for token in tokens:
        if "\ufffd" not in token.token:
            assert text[token.offset :].startswith(token.token)
    by_thread = {(e.thread, e.logprobs.chosen) for e in events if isinstance(e, TokenEvent)}
    assert {token.logprob for token in tokens} <= {value for _, value in by_thread}
    assert all(len(token.top) == 2 for token in tokens)


@pytest.mark.slow
def test_tokens_that_a_stop_string_cut_off_are_not_listed():
    whole, _ = decode()
    stop = whole.text[len(whole.text) // 2 :][:3]
    result, events = decode(sampling=SamplingParams(promise_bias=7.0, stop=(stop,)), logprobs=0)
    tokens = []
    text, _, _ = follow(result, events, 3, tokens, sampling=SamplingParams(stop=(stop,)))
    assert tokens
    assert all(token.offset < len(text) for token in tokens)


letters = st.text("abc", max_size=12)


@settings(deadline=None)
@given(st.lists(letters), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_stop_strings_cut_a_stream_as_they_cut_the_whole(pieces, stops):
    whole = "".join(pieces)
    ends = [whole.index(stop) for stop in stops if stop in whole]
    stopper = StopFilter(stops)
    shown = "".join(stopper.push(piece) for piece in pieces) + stopper.flush()
    # Two stop strings that overlap may cut at the one that is complete first.
    assert stopper.stopped == bool(ends)
    assert shown == (whole[: len(shown)] if ends else whole)
    assert not any(stop in shown for stop in stops)
    if len(stops) == 1 and ends:
        assert shown == whole[: min(ends)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7])
def test_a_stop_token_ends_the_text_where_the_engine_ends_it(size):
    plain, _ = decode()
    chunk = next(thread for thread in plain.trace.threads if thread.path)
    token = next(token for token in chunk.token_ids[3:] if CODEC.grammar.text_mask[token])
    sampling = SamplingParams(promise_bias=7.0, stop_token_ids=(token,))
    result, events = decode(sampling=sampling)
    text, _, finished = follow(result, events, size, sampling=sampling)
    assert result.document is None
    assert text == result.text
    assert finished.finish_reason == "stop"


def test_what_a_stop_string_cut_is_no_document_even_if_every_thread_had_ended():
    session = Session(CODEC, PROMPT, LIMITS, parallel=True, sampling=SamplingParams(stop=("STOP",)))
    main = [*CODEC.encode_text("A "), *CODEC.encode_promise("tea", 10)]
    main += [*CODEC.encode_text(" and STOP, which nobody is to read"), CODEC.eos_id]
    chunk = [*CODEC.encode_text("leaves"), CODEC.control.async_close]
    tokens = [*(((), token) for token in main), *(((0,), token) for token in chunk)]
    text = session.feed((path, token, 0.1 * at) for at, (path, token) in enumerate(tokens)).text
    finished = session.finish(Decoded("stop", 9, 0.0, 0.1, 1.0), wants_document=True)
    assert text + session.rest().text == "A leaves and "
    assert finished.pasta["document"] is None


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
def test_a_stop_string_ends_no_text_before_min_tokens_here_as_in_the_engine(parallel):
    bias = 7.0 if parallel else 0.0
    plain, _ = decode(sampling=SamplingParams(promise_bias=bias), parallel=parallel)
    sampling = SamplingParams(promise_bias=bias, stop=(plain.text[3:5],), min_tokens=20)
    result, events = decode(sampling=sampling, parallel=parallel)
    text, _, finished = follow(result, events, sampling=sampling, parallel=parallel)
    assert text == result.text
    assert finished.completion_tokens >= 20
