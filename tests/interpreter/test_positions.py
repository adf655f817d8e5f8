"""Every rule of positions: where a parent goes on, in training data as in decoding, and within the model's context."""

import random

import pytest
from hypothesis import given, settings

from pasta.interpreter import Interpreter, Limits, linearise
from pasta.lang import Chunk, Codec, Document, Sync, Text
from pasta.lang.positions import FIXED_ROOM, SCHEMES, Positions
from tests.interpreter.test_constraints import permitted, random_limits, wild_token
from tests.support.documents import documents
from tests.support.tokenizers import byte_level

PROMPT = [5, 6, 7]
WIDE = Limits(max_depth=100, max_tokens=100_000, max_chunk_tokens=100_000, max_threads=1000)
CODECS = {scheme: Codec(byte_level(), positions=Positions(scheme)) for scheme in SCHEMES}
schemes = pytest.mark.parametrize("scheme", SCHEMES)
TWO = Document(
    (Chunk("x", 70, (Text("abc"),)), Text("then"), Chunk("y", 10, (Text("d"),)), Sync(), Text("end"))
)


def placed(codec, ids):
    """Positions of ids in storage order, by the rule's definition alone."""
    control, out = codec.control, []
    close = {at for at, token in enumerate(ids) if token == control.close}

    def thread(at, position):
        """Place a thread's ids from ``at``; returns where they end."""
        start = at
        while at < len(ids):
            out.append(position)
            token = ids[at]
            at, position = at + 1, position + 1
            if token == control.async_close and start:
                return at
            if at - 1 in close:
                began = at
                out.append(position)  # <async>
                at = thread(at + 1, position + 1)
                opened = max(i for i in range(began) if ids[i] == control.promise)
                estimate = codec.topic_of(ids[opened:began])[1]
                if codec.positions.scheme == "predicted":
                    assert estimate == max(1, at - began - 2)
                position += {
                    "predicted-in-tens": estimate + 2,
                    "predicted": max(1, at - began - 2) + 2,
                    "fixed": FIXED_ROOM + 2,
                    "shared": 0,
                }[codec.positions.scheme]
        return at

    thread(0, len(PROMPT))
    return [*range(len(PROMPT)), *out]


@schemes
@settings(max_examples=60, deadline=None)
@given(document=documents)
def test_training_rows_stand_where_the_rule_says(scheme, document):
    codec = CODECS[scheme]
    ids = [*codec.encode(document), codec.eos_id]
    rows = linearise(codec.grammar, PROMPT, ids)
    assert rows.token_ids == [*PROMPT, *ids]
    assert rows.positions == placed(codec, ids)


@schemes
@settings(max_examples=60, deadline=None)
@given(document=documents)
def test_threads_that_run_in_any_order_stand_where_the_training_rows_do(scheme, document):
    codec = CODECS[scheme]
    ids = [*codec.encode(document), codec.eos_id]
    stored = Interpreter(codec.grammar, WIDE, PROMPT, strict=False)
    stored.drive(0, ids)
    tokens = {thread.path: thread.tokens for thread in stored.threads}
    fed = sorted((feed.token, feed.position) for feed in stored.take_feeds())
    rng = random.Random(len(ids))
    it = Interpreter(codec.grammar, WIDE, PROMPT, strict=False)
    while not it.done:
        thread = it.threads[rng.choice(it.live_threads)]
        it.emit(thread.id, tokens[thread.path][len(thread.tokens)])
    rows = linearise(codec.grammar, PROMPT, it.response_ids())
    assert sorted((feed.token, feed.position) for feed in it.take_feeds()) == fed
    assert sorted(zip(rows.token_ids, rows.positions, strict=True)) == sorted(
        [*zip(PROMPT, range(len(PROMPT)), strict=True), *fed]
    )
    for thread in it.threads[1:]:  # and on another engine
        remote = Interpreter.for_chunk(codec.grammar, WIDE, it.snapshot(thread.id), strict=False)
        remote.drive(0, it.response_ids(thread.id))
        home = {u.path: u.positions for u in it.threads if u.path[: len(thread.path)] == thread.path}
        assert {u.path: u.positions for u in remote.threads} == home


@pytest.mark.parametrize(
    ("positions", "room"),
    [
        (Positions(), 72),
        (Positions("fixed"), FIXED_ROOM + 2),
        (Positions("shared"), 0),
        (Positions(hint_factor=0.5), 37),
        (Positions(hint_factor=2.0), 142),
    ],
    ids=str,
)
def test_the_parent_goes_on_behind_the_room_for_its_chunk(positions, room):
    codec = Codec(byte_level(), positions=positions)
    rows = linearise(codec.grammar, PROMPT, [*codec.encode(TWO), codec.eos_id])
    close = rows.token_ids.index(codec.control.close)
    end = rows.token_ids.index(codec.control.async_close)
    assert rows.positions[close + 1] == rows.positions[close] + 1
    assert rows.positions[end + 1] == rows.positions[close] + 1 + room


def test_exact_estimates_are_the_lengths_of_chunks_nested_ones_included():
    codec = CODECS["predicted"]
    inner = Chunk("in", 10, (Text("deep water"),))
    ids = codec.encode(Document((Chunk("out", 10, (Text("a"), inner)), Chunk("none", 10, ()))))
    opened = [at for at, token in enumerate(ids) if token == codec.control.promise]
    estimates = [codec.topic_of(ids[at : ids.index(codec.control.close, at) + 1])[1] for at in opened]
    deep = len(codec.encode_text("deep water"))
    assert estimates == [
        len(codec.encode_text("a")) + len(codec.encode_promise("in", deep)) + deep + 2,
        deep,
        1,
    ]
    assert [chunk.tokens % 10 for chunk in codec.decode(ids).chunks()] == [0, 0, 0]


@schemes
@pytest.mark.parametrize("factor", [0.3, 1.0, 7.0])
def test_no_token_stands_beyond_the_models_context(scheme, factor):
    codec = Codec(byte_level(), positions=Positions(scheme, factor))
    for seed in range(60):
        rng = random.Random(seed)
        limits = random_limits(rng)
        it = Interpreter(codec.grammar, limits, PROMPT)
        while not it.done:
            thread = rng.choice(it.live_threads)
            it.emit(thread, permitted(rng, it, thread, wild_token(rng, codec)))
        highest = max(max(thread.positions, default=0) for thread in it.threads)
        assert highest < max(limits.max_positions, len(PROMPT) + 1)
        assert len(it.response_ids()) <= limits.max_tokens


@pytest.mark.parametrize("scheme", ["fixed", "shared"])
def test_where_an_estimate_reserves_nothing_every_estimate_may_be_written(scheme):
    codec = CODECS[scheme]
    limits = Limits(max_positions=200)
    it = Interpreter(codec.grammar, limits, PROMPT)
    ids = codec.encode_promise("x", 2000)
    for token in ids:
        it.emit(0, token)
    assert it.threads[1].estimate == 2000


def test_an_estimate_that_reaches_beyond_the_context_may_not_be_written():
    codec = CODECS["predicted-in-tens"]
    it = Interpreter(codec.grammar, Limits(max_positions=200), PROMPT)
    refused = ""
    for token in codec.encode_promise("x", 2000):
        if not it.allowed(0).permits(token, codec.grammar):
            refused = codec.decode_text([token])
            break
        it.emit(0, token)
    assert refused == "0"  # of 2000 there is 20 or 200 at most
