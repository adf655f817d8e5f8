"""The asyncio façade: concurrent streams, cancellation by leaving, absorbing, failures that reach the caller."""

import asyncio
import threading

import pytest

from pasta.engine import (
    AsyncEngine,
    DoneEvent,
    Engine,
    EngineConfig,
    EngineStopped,
    ForkEvent,
    Request,
    SamplingParams,
)
from pasta.engine.aio import PAUSE_S
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import tiny

LOADED = tiny()
LIMITS = Limits(max_tokens=120, max_chunk_tokens=20, max_threads=6)
EAGER, PLAIN = SamplingParams(promise_bias=7.0), SamplingParams(promise_bias=-100.0)
#: Of a request whose chunks, and with them its end, are awaited for ever.
ENDLESS = {"place_locally": lambda *_: False}


def ask(text="Tell me about France", **fields):
    prompt = LOADED.codec.encode_prompt([{"role": "user", "content": text}])
    return Request(prompt_ids=prompt, **{"limits": LIMITS, "sampling": EAGER, **fields})


def new_engine(**sizes):
    return Engine(LOADED, EngineConfig(**{"num_slots": 2, "slot_tokens": 512, **sizes}))


def with_engine(scenario, stream_interval=0, pause_s=PAUSE_S, **sizes):
    """Run a coroutine function on a started engine, and stop that whatever happens. Its clock counts steps."""

    async def run():
        bare = new_engine(**sizes)
        engine = AsyncEngine(bare, stream_interval, pause_s=pause_s, clock=lambda: bare.num_steps)
        await engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), timeout=60)
        finally:
            await engine.stop()

    return asyncio.run(run())


async def result_of(engine, request):
    async for event in engine.stream(request):
        if isinstance(event, DoneEvent):
            return event.result
    raise AssertionError("a stream ended without DoneEvent")


@pytest.mark.slow
def test_concurrent_streams_give_what_each_request_gives_alone():
    texts = ["a", "Tell me about France", "b c d"]
    alone = [new_engine().generate(ask(text)).response_ids for text in texts]

    async def scenario(engine):
        return await asyncio.gather(*(result_of(engine, ask(text)) for text in texts))

    assert [result.response_ids for result in with_engine(scenario)] == alone


async def batches_of(engine, request):
    return [batch async for batch in engine.events(await engine.submit(request))]


@pytest.mark.slow
@pytest.mark.parametrize("interval", [0, 3])
def test_a_stream_has_the_events_of_the_steps_in_their_order(interval):
    bare, expected = new_engine(), []
    bare.submit(ask(request_id="one"))
    while bare.has_work:
        expected += [(type(event), event.step, event.thread) for event in bare.step()]

    async def scenario(engine):
        return await batches_of(engine, ask(request_id="one"))

    batches = with_engine(scenario, stream_interval=interval)
    assert [(type(event), event.step, event.thread) for batch in batches for event in batch] == expected


def test_tokens_come_in_batches_of_the_stream_interval_but_the_first_one_and_the_end_at_once():
    async def scenario(engine):
        return await batches_of(engine, ask(sampling=PLAIN, limits=Limits(max_tokens=19)))

    first, *middle, last = with_engine(scenario, stream_interval=5, multi_step=False)
    assert len(first) == 1
    # Several may be fetched at once, or all with the end, but none is cut: each ends before a step whose number is a
    # multiple of 5.
    assert {batch[-1].step % 5 for batch in middle} <= {4}
    assert isinstance(last[-1], DoneEvent)


def test_a_response_waits_for_the_interval_while_others_begin_and_end():
    async def scenario(engine):
        requests = [
            ask(text, sampling=PLAIN, limits=Limits(max_tokens=tokens))
            for text, tokens in (("a", 40), ("b", 5), ("c", 5))
        ]
        return await asyncio.gather(*(batches_of(engine, request) for request in requests))

    longest, *_ = with_engine(scenario, stream_interval=10**6)
    first, last = longest
    assert (len(first), type(last[-1])) == (1, DoneEvent)


def test_a_chunk_to_be_decoded_elsewhere_is_reported_at_once():
    async def scenario(engine):
        request = ask(place_locally=lambda *_: False, limits=Limits(max_tokens=400, max_chunk_tokens=20))
        async for batch in engine.events(await engine.submit(request)):
            lent = [event.step for event in batch if isinstance(event, ForkEvent) and event.lent]
            if lent:
                return lent, batch[-1].step
        raise AssertionError("nothing was to be decoded elsewhere")

    lent, last_step = with_engine(scenario, stream_interval=10**6)
    assert lent == [last_step]


@pytest.mark.parametrize("pause_s", [0.0, 10**6])
def test_a_next_turn_is_prefilled_when_no_request_has_come_for_a_while(pause_s):
    async def scenario(engine):
        await result_of(engine, ask(conversation=True))
        while pause_s == 0 and engine.engine.has_work:
            await asyncio.sleep(0.001)
        await result_of(engine, ask("next"))
        return engine.engine.prefixes.counts.ahead

    assert (with_engine(scenario, pause_s=pause_s) > 0) == (pause_s == 0)


def test_leaving_a_stream_cancels_its_request():
    async def scenario(engine):
        stream = engine.stream(ask())
        await anext(stream)
        await stream.aclose()
        await result_of(engine, ask("next"))  # commands are taken in order: the cancellation has happened
        return engine.engine.num_active, engine.engine.num_waiting

    assert with_engine(scenario) == (0, 0)


def test_cancelling_ends_the_stream_with_a_done_event():
    async def scenario(engine):
        request_id = await engine.submit(ask(**ENDLESS))
        assert await engine.cancel(request_id)
        batches = [batch async for batch in engine.events(request_id)]
        return batches[-1][-1], await engine.cancel(request_id)

    done, again = with_engine(scenario)
    assert (done.finish_reason, done.result) == ("cancelled", None)
    assert again is False


def test_nothing_is_kept_of_a_request_that_is_left_before_its_first_event():
    async def scenario(engine):
        submission = asyncio.ensure_future(engine.submit(ask(request_id="left at once")))
        await asyncio.sleep(0)
        submission.cancel()
        await engine.submit(ask(request_id="left later"))
        for request_id in ("left at once", "left later"):
            await engine.leave(request_id)
        return engine._queues, engine.engine.num_active

    assert with_engine(scenario) == ({}, 0)


def test_a_request_whose_submission_is_cancelled_is_not_decoded():
    async def scenario(engine):
        submission = asyncio.create_task(engine.submit(ask(**ENDLESS)))
        await asyncio.sleep(0)  # the engine's thread has the request now
        submission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submission
        await result_of(engine, ask("next"))  # commands are taken in order
        return engine.engine.num_active, engine.engine.num_waiting, engine._queues

    assert with_engine(scenario) == (0, 0, {})


@pytest.mark.slow
def test_stopping_ends_open_streams_and_leaves_no_request_in_the_engine():
    """Another façade, or a call of its own, may use the engine afterwards."""
    bare = new_engine(num_slots=1)

    async def run():
        engine = AsyncEngine(bare)
        await engine.start()
        decoding, waiting = [engine.events(await engine.submit(ask(**ENDLESS))) for _ in range(2)]
        await anext(decoding)
        await engine.stop()
        for stream in (decoding, waiting):
            with pytest.raises(EngineStopped):
                async for _ in stream:
                    pass
        with pytest.raises(EngineStopped):
            await engine.submit(ask())

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (bare.num_active, bare.num_waiting, bare.has_work) == (0, 0, False)
    assert bare.generate(ask()).response_ids == new_engine().generate(ask()).response_ids


def test_a_request_that_cannot_fit_is_refused_at_submission():
    async def scenario(engine):
        with pytest.raises(UserError, match="the context holds 512"):
            await engine.submit(ask("word " * 300))

    with_engine(scenario)


@pytest.mark.slow
def test_a_chunk_decoded_elsewhere_is_absorbed_while_the_parent_goes_on():
    # Room for both: home counts an absorbed chunk when it comes, and the parent must not have used all by then.
    limits = Limits(max_tokens=1500, max_chunk_tokens=20, max_threads=4, max_depth=1)
    request = ask(limits=limits, sampling=SamplingParams(promise_bias=7.0))
    chunks, elsewhere = {}, new_engine()

    async def scenario(home):
        request_id = await home.submit(request.replace(place_locally=lambda live, estimate: False))
        async for batch in home.events(request_id):
            for event in batch:
                if isinstance(event, ForkEvent):
                    chunk = elsewhere.generate(request.replace(prompt_ids=(), snapshot=event.snapshot()))
                    chunks[event.path] = chunk.response_ids
                    await home.absorb(request_id, event.path, chunk.response_ids)
                if isinstance(event, DoneEvent):
                    return event.result
        raise AssertionError("the stream ended without DoneEvent")

    result = with_engine(scenario, slot_tokens=2048)
    threads = {thread.path: thread.token_ids for thread in result.trace.threads}
    assert chunks
    assert {path: threads[path] for path in chunks} == chunks
    assert len(threads) == 1 + len(chunks)
    assert result.document is not None


def test_a_failing_step_reaches_every_stream():
    async def scenario(engine):
        def fail():
            raise RuntimeError("out of memory")

        engine.engine.step = fail
        with pytest.raises(EngineStopped, match="out of memory"):
            await result_of(engine, ask())
        with pytest.raises(EngineStopped):
            await engine.submit(ask())

    with_engine(scenario)


def test_a_failing_cancellation_reaches_every_stream():
    async def scenario(engine):
        def fail(request_id):
            raise RuntimeError("device lost")

        engine.engine.cancel = fail
        left = engine.events(await engine.submit(ask(**ENDLESS)))
        await anext(left)
        request_id = await engine.submit(ask("x"))
        await left.aclose()
        with pytest.raises(EngineStopped, match="device lost"):
            return [batch async for batch in engine.events(request_id)]

    with_engine(scenario)


def test_a_call_that_comes_between_a_step_s_failure_and_its_report_fails_too():
    async def scenario(engine):
        called = threading.Event()

        def fail():
            called.wait()
            raise RuntimeError("out of memory")

        engine.engine.step = fail
        request_id = await engine.submit(ask())
        called.set()
        engine._thread.join()
        with pytest.raises(EngineStopped, match="out of memory"):
            async with asyncio.timeout(10):
                await engine.cancel(request_id)

    with_engine(scenario)


def test_an_answer_that_ended_before_a_failure_arrives_whole_after_it():
    async def scenario(engine):
        def fail():
            raise RuntimeError("out of memory")

        engine.engine.turns.step = fail
        request_id = await engine.submit(ask(conversation=True))
        while engine.failure is None:
            await asyncio.sleep(0.001)
        return [event async for batch in engine.events(request_id) for event in batch]

    assert isinstance(with_engine(scenario, pause_s=0.0)[-1], DoneEvent)


def test_a_failure_while_there_is_no_request_is_known_without_one():
    """So that the engine is replaced before one comes."""

    async def scenario(engine):
        def fail():
            raise RuntimeError("out of memory")

        engine.engine.turns.step = fail
        await result_of(engine, ask(conversation=True))
        while engine.failure is None:
            await asyncio.sleep(0.001)
        return str(engine.failure)

    assert "out of memory" in with_engine(scenario, pause_s=0.0)
