"""What follows a request: asking an Interpreter while a service is updated, and the answer as a stream."""

import asyncio
import dataclasses
import gc
import json
import time
from contextlib import ExitStack, aclosing

import pytest

from serve.errors import ApiError, unavailable
from serve.gateway.answers import collect, retried, stream, told, written
from serve.gateway.responses import ChatWriter, CompletionWriter
from serve.wire import Accepted, Delta, Finished, Refused, TextToken

SUPERSEDED = Refused("not here", status=503, superseded=True)
FULL = Refused("full", status=429)


def updates_of(*answers, within_s=10.0):
    """What comes of ``answers``, one a call; and the number of calls."""
    calls = []

    async def ask():
        calls.append(None)
        for update in answers[min(len(calls), len(answers)) - 1]:
            yield [update]

    async def collect():
        return [update async for batch in retried(ask, within_s=within_s) for update in batch]

    return asyncio.run(collect()), len(calls)


def test_a_request_that_another_interpreter_takes_is_asked_once_more():
    assert updates_of([SUPERSEDED], [SUPERSEDED], [Accepted(3)]) == ([Accepted(3)], 3)


def test_a_request_that_no_interpreter_takes_is_refused_in_the_end():
    assert updates_of([SUPERSEDED], within_s=0.0) == ([SUPERSEDED], 1)


def test_the_time_to_ask_again_begins_with_the_first_refusal():
    """An Interpreter whose Decoders are being replaced waits for them, and may learn late that it is superseded."""
    calls = []

    async def ask():
        calls.append(None)
        if len(calls) == 1:
            await asyncio.sleep(0.05)
            yield [SUPERSEDED]
        else:
            yield [Accepted(3)]

    async def call():
        return await anext(retried(ask, within_s=0.04))

    assert asyncio.run(call()) == [Accepted(3)]

    async def tell():
        calls.append(None)
        await asyncio.sleep(0.05 * (len(calls) == 1))
        return SUPERSEDED if len(calls) == 1 else "told"

    calls.clear()
    assert asyncio.run(told(tell, within_s=0.04)) == "told"


def test_a_model_that_no_interpreter_has_any_more_is_not_asked_for_again():
    """A rolling update has removed it, and this Gateway of the old version is about to stop."""
    without = {name: dataclasses.replace(SUPERSEDED, no_model=True, by=name) for name in ("new", "newer")}
    asked, known = [], {"old", "new", "newer"}

    def ask():
        asked.append(None)
        if len(asked) == 3:
            known.remove("old")
        return without["new" if len(asked) < 5 else "newer"]

    async def items():
        yield [ask()]

    async def tell():
        return ask()

    async def scenario():
        refused = [batch async for batch in retried(items, lambda: frozenset(known))]
        assert (refused, len(asked)) == ([[without["newer"]]], 5)
        asked.clear()
        known.add("old")
        with pytest.raises(ApiError) as caught:
            await told(tell, lambda: frozenset(known))
        return caught.value

    refused = asyncio.run(asyncio.wait_for(scenario(), 5))
    assert (refused.status, refused.headers["Retry-After"], len(asked)) == (503, "1", 5)


def test_any_other_refusal_stands():
    assert updates_of([FULL], [Accepted(3)]) == ([FULL], 1)


async def updates(batches, ended):
    """What an Interpreter says, an error last if it is to break; ``ended`` is told how that ended."""
    try:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch
        ended.append("by itself")
    finally:
        ended.append("closed")


def pieces_of(*batches, read=None):
    """A stream's pieces, of which only so many are read, and whether the updates were closed at the end."""
    writer, ended = ChatWriter("m", 1), []

    async def run():
        pieces = []
        async with aclosing(stream(writer, batches[0], updates(batches[1:], ended))) as answer:
            async for piece in answer:
                pieces.append((piece, [*ended]))
                if len(pieces) == read:
                    break
        await asyncio.sleep(0)
        return pieces, ended

    return asyncio.run(run())


ACCEPTED, HALF, REST, END = Accepted(3), Delta("Hel"), Delta("lo"), Finished("stop", 3, 2, {})


def contents(piece):
    events = [json.loads(line[6:]) for line in piece.splitlines() if line.startswith("data: {")]
    return [event["choices"][0]["delta"].get("content") for event in events]


def test_what_comes_at_once_is_written_at_once():
    pieces, _ = pieces_of([ACCEPTED], [HALF], [REST, END])
    assert [contents(piece) for piece, _ in pieces] == [[""], ["Hel"], ["lo", None]]


def test_a_stream_ends_with_the_last_choice_whenever_its_updates_do():
    pieces, ended = pieces_of([ACCEPTED, HALF], [REST, END])
    last, ended_by_then = pieces[-1]
    assert last.endswith("data: [DONE]\n\n")
    assert ended_by_then == []
    assert ended == ["by itself", "closed"]


def joined(pieces):
    """The response object of its pieces."""
    return json.loads("".join(pieces))


def test_usage_adds_up_over_prompts_and_choices():
    ends = [Finished("stop", 3, 2, {}, index=0), Finished("stop", 3, 4, {}, index=1, cached_tokens=3)]
    answer = collect(ChatWriter("m", 2), updates([[Accepted(3)], ends], []))
    assert joined(asyncio.run(answer))["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def usages_of(*batches, **options):
    """The usage objects of a stream's chunks."""

    async def run():
        writer = CompletionWriter("m", 2, **options)
        pieces = [piece async for piece in stream(writer, batches[0], updates(batches[1:], []))]
        lines = "".join(pieces).splitlines()
        return [json.loads(line[6:]).get("usage") for line in lines if line.startswith("data: {")]

    return asyncio.run(run())


def usage(completion_tokens):
    return {
        "prompt_tokens": 3,
        "completion_tokens": completion_tokens,
        "total_tokens": 3 + completion_tokens,
    }


TWO = (
    [ACCEPTED, Delta("a", completion_tokens=2), Delta("b", index=1, completion_tokens=1)],
    [Delta("c", completion_tokens=4), Finished("stop", 3, 5, {}), Finished("stop", 3, 1, {}, index=1)],
)


def test_every_chunk_tells_its_choice_s_tokens_so_far_if_that_is_asked_for():
    assert usages_of(*TWO, continuous_usage=True) == [usage(count) for count in (2, 1, 4, 5, 1)]


def test_the_last_chunk_has_all_choices_tokens():
    *_, last = usages_of(*TWO, continuous_usage=True, include_usage=True)
    assert last == {**usage(6), "prompt_tokens_details": {"cached_tokens": 0}}


def test_the_chunk_with_the_role_counts_the_prompt():
    async def run():
        writer = ChatWriter("m", 1, continuous_usage=True)
        return [piece async for piece in stream(writer, [ACCEPTED], updates([[END]], []))]

    assert json.loads(asyncio.run(run())[0].removeprefix("data: "))["usage"] == usage(0)


def test_a_client_that_leaves_closes_the_updates():
    assert pieces_of([ACCEPTED, HALF], [REST], [END], read=2)[1] == ["closed"]


def whole_of(*batches):
    """A whole answer's text, and what had become of the updates when it was there and afterwards."""
    ended = []

    async def run():
        answer = await collect(ChatWriter("m", 1), updates(batches, ended))
        before = [*ended]
        await asyncio.sleep(0)
        return joined(answer)["choices"][0]["message"]["content"], before, ended

    return asyncio.run(run())


def test_a_whole_answer_is_there_with_its_last_choice_whenever_its_updates_end():
    assert whole_of([ACCEPTED, HALF], [REST, END]) == ("Hello", [], ["by itself", "closed"])


def test_what_is_lost_after_the_last_choice_is_lost_to_nobody():
    assert whole_of([ACCEPTED, HALF, REST, END], unavailable("lost")) == ("Hello", [], ["closed"])


def test_a_whole_answer_whose_updates_end_early_is_an_error():
    with pytest.raises(ApiError, match="ended early"):
        whole_of([ACCEPTED, HALF])


@pytest.mark.parametrize("lost", [[], [unavailable("lost")]], ids=["updates that end early", "an error"])
def test_what_goes_wrong_is_the_last_event(lost):
    pieces, ended = pieces_of([ACCEPTED, HALF], *lost)
    assert '"code":"service_unavailable"' in pieces[-1][0]
    assert "[DONE]" not in pieces[-1][0]
    assert ended[-1] == "closed"


def test_of_tokens_with_one_text_the_chosen_one_is_listed():
    chosen = TextToken("\ufffd", -2.0, (("a", -0.5), ("\ufffd", -1.0), ("\ufffd", -3.0)))
    batches = updates([[Accepted(3), Delta("\ufffd", logprobs=[chosen]), Finished("stop", 3, 1, {})]], [])
    whole = joined(asyncio.run(collect(CompletionWriter("m", 1, logprobs=True), batches)))
    assert whole["choices"][0]["logprobs"]["top_logprobs"] == [{"\ufffd": -2.0, "a": -0.5}]


TOKENS = [
    TextToken(f"t{n}", None if n == 0 else -n / 7, ((f"t{n}", -n / 7), ("é\ufffd", -9e9)), n)
    for n in range(100)
]


@pytest.mark.parametrize("tokens", [[], TOKENS[:1], TOKENS[1:33], TOKENS])
@pytest.mark.parametrize("kind", [ChatWriter, CompletionWriter])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_whole_answer_has_the_log_probabilities_that_its_chunks_have(kind, tokens, choices):
    tokens = [token for token in tokens if token.logprob is not None or kind is CompletionWriter]
    writer = kind("m", choices, logprobs=True)
    deltas = [Delta("é", index=n, logprobs=tokens) for n in range(choices)]
    ends = [Finished("stop", 3, 2, {"threads": n}, index=n) for n in range(choices)]
    whole = joined(asyncio.run(collect(writer, updates([[Accepted(3), *deltas, *ends]], []))))
    written = [choice["logprobs"] for choice in whole["choices"]]
    if tokens:
        assert written == [writer.delta_chunk(delta)["choices"][0]["logprobs"] for delta in deltas]
    else:
        assert all(not (value or None) for logprobs in written for value in logprobs.values())
    held = [whole] if choices == 1 else whole["choices"]
    assert [each["pasta"]["threads"] for each in held] == [*range(choices)]
    assert whole["object"] == writer.kind


@pytest.fixture
def uncollected():
    """No collection of garbage meanwhile: it would go through all that the tests before have left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_no_piece_of_a_large_answer_holds_the_loop():
    top = tuple((f"token {n}", -float(n)) for n in range(20))
    tokens = [TextToken("token 0", -0.5, top)] * 3000
    writer = ChatWriter("m", 1, logprobs=True)
    pieces = asyncio.run(
        collect(writer, updates([[Accepted(3), Delta("x", logprobs=tokens), Finished("stop", 3, 2, {})]], []))
    )
    sizes, busy = [], []
    before = time.thread_time()
    for piece in pieces:
        now = time.thread_time()
        sizes.append(len(piece))
        busy.append(now - before)
        before = now
    assert sum(sizes) > 3_000_000
    assert max(sizes) < 100_000
    assert max(busy) < sum(busy) / 10


def test_a_large_answer_lets_others_have_their_turn_and_holds_its_place_until_it_is_read():
    async def scenario():
        released, turns = [], 0
        place = ExitStack()
        place.callback(released.append, True)

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        blocks = written((f"{n:1000}" for n in range(1000)), place.pop_all())
        found = [(len(block), bool(released)) async for block in blocks]
        task.cancel()
        return found, turns, released

    found, turns, released = asyncio.run(scenario())
    assert sum(size for size, _ in found) == 1_000_000
    assert max(size for size, _ in found) < 70_000
    assert turns >= len(found) - 1
    assert not any(free for _, free in found)
    assert released == [True]
