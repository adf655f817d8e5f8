"""Threads, segments, positions and targets as DESIGN section 3 defines them, on documents small enough to read."""

import pytest

from pasta.interpreter import (
    IGNORE,
    ConstraintError,
    Fork,
    Interpreter,
    Join,
    Limits,
    TokenKind,
    Wait,
    linearise,
)
from pasta.interpreter.thread import Thread
from pasta.interpreter.trace import trace_of
from pasta.lang import Chunk, Document, Sync, Text, parse
from tests.support.tokenizers import codec

C = codec()
G = C.grammar
PROMPT = [5, 6, 7]


def response(document):
    return [*C.encode(document), C.eos_id]


def rows_of(document):
    return linearise(G, PROMPT, response(document))


def find(rows, token, nth=0):
    return [i for i, t in enumerate(rows.token_ids) if t == token][nth]


def sees(rows, q, k):
    """Whether row q sees row k."""
    visible = rows.sees[rows.segments[q]] >> rows.segments[k] & 1
    return bool(visible) and k <= q


TWO = parse(
    'A<promise topic="x" tokens="10"/><async>bb</async>C<promise topic="y" tokens="20"/><async>d</async>E<sync/>F'
)


def test_a_chunk_sees_what_its_parent_saw_at_the_fork_and_nothing_later():
    rows = rows_of(TWO)
    inside = find(rows, C.control.async_open) + 1
    close = find(rows, C.control.close)
    assert all(sees(rows, inside, k) for k in range(close + 1))
    second_chunk = find(rows, C.control.async_open, 1)
    assert not sees(rows, second_chunk, inside)


def test_a_parent_does_not_see_an_unjoined_chunk():
    rows = rows_of(TWO)
    after = find(rows, C.control.async_close) + 1
    assert not sees(rows, after, find(rows, C.control.async_open))
    assert sees(rows, after, find(rows, C.control.close))


def test_the_sync_token_itself_sees_the_joined_chunks():
    rows = rows_of(TWO)
    sync = find(rows, C.control.sync)
    assert all(sees(rows, sync, k) for k in range(sync + 1))
    assert not sees(rows, sync - 1, find(rows, C.control.async_open))


def test_joining_a_chunk_joins_its_descendants():
    nested = Chunk("in", 10, (Text("deep"),))
    rows = rows_of(Document((Chunk("out", 20, (nested,)), Sync(), Text("end"))))
    deep = find(rows, C.control.async_open, 1) + 1
    assert sees(rows, find(rows, C.control.sync), deep)


def test_a_chunk_sees_what_an_ancestor_joined_before_the_fork():
    first = Chunk("a", 10, (Text("one"),))
    second = Chunk("b", 10, (Text("two"),))
    rows = rows_of(Document((first, Sync(), second)))
    assert sees(rows, find(rows, C.control.async_open, 1), find(rows, C.control.async_open) + 1)


def test_positions_leave_room_for_the_chunk_and_its_two_tags():
    rows = rows_of(TWO)
    close = find(rows, C.control.close)
    p = rows.positions[close]
    assert rows.positions[close + 1] == p + 1
    assert rows.positions[find(rows, C.control.async_close) + 1] == p + 10 + 3


def test_a_chunk_that_outgrows_its_estimate_keeps_counting():
    rows = rows_of(Document((Chunk("a", 10, (Text("x y z " * 20),)), Text("after"))))
    opened, closed = find(rows, C.control.async_open), find(rows, C.control.async_close)
    first = rows.positions[opened]
    assert rows.positions[opened : closed + 1] == list(range(first, first + closed - opened + 1))
    assert rows.positions[closed] > rows.positions[closed + 1]


def test_targets_follow_threads_not_storage():
    rows = rows_of(TWO)
    close, opened, closed = (
        find(rows, t) for t in (C.control.close, C.control.async_open, C.control.async_close)
    )
    assert rows.targets[close] == rows.token_ids[closed + 1]
    assert rows.targets[opened] == rows.token_ids[opened + 1]
    assert rows.targets[closed - 1] == C.control.async_close
    assert rows.targets[closed] == IGNORE
    assert C.control.async_open not in rows.targets


def test_loss_covers_the_response_only():
    rows = rows_of(TWO)
    assert rows.targets[: len(PROMPT) - 1] == [IGNORE] * (len(PROMPT) - 1)
    assert rows.targets[len(PROMPT) - 1] == rows.token_ids[len(PROMPT)]
    assert rows.targets[-1] == IGNORE


def test_every_target_has_its_kind():
    rows = rows_of(TWO)
    control = C.control
    expected = {
        control.promise: TokenKind.PROMISE,
        control.close: TokenKind.CLOSE,
        control.async_close: TokenKind.ASYNC_CLOSE,
        control.sync: TokenKind.SYNC,
        C.eos_id: TokenKind.EOS,
    }
    for target, kind in zip(rows.targets, rows.kinds, strict=True):
        if target in expected:
            assert kind == expected[target]
    assert [rows.kinds.count(kind) for kind in (TokenKind.TOPIC, TokenKind.ESTIMATE)] == [
        2 * (len(C.encode_text(' topic="')) + 1),
        sum(len(C.encode_text(f'" tokens="{n}"')) for n in (10, 20)),
    ]


def test_a_plain_answer_is_one_causal_segment():
    rows = rows_of(Document((Text("hello there"),)))
    assert rows.sees == [1]
    assert rows.positions == list(range(len(rows.token_ids)))


def emit_all(it, thread, ids):
    actions = []
    for token in ids:
        actions += it.emit(thread, token)
    return actions


def start():
    return Interpreter(G, Limits(), PROMPT)


def test_a_fork_feeds_close_and_async_together():
    it = start()
    actions = emit_all(it, 0, C.encode_promise("x", 10))
    assert actions == [Fork(0, 1)]
    close, opened = it.take_feeds()[-2:]
    assert (close.token, close.thread, close.wants_logits) == (C.control.close, 0, True)
    assert (opened.token, opened.thread, opened.wants_logits) == (C.control.async_open, 1, True)


def test_a_sync_waits_and_is_fed_with_the_last_async_close():
    it = start()
    emit_all(it, 0, C.encode_promise("x", 10))
    assert it.emit(0, C.control.sync) == (Wait(0),)
    it.take_feeds()
    actions = it.emit(1, C.control.async_close)
    assert Join(0, (1,)) in actions
    assert [feed.token for feed in it.take_feeds()] == [C.control.async_close, C.control.sync]


def test_a_sync_with_nothing_outstanding_does_nothing():
    it = start()
    assert it.emit(0, C.control.sync) == ()
    assert it.sees == [1]


def test_the_end_waits_for_unjoined_chunks():
    it = start()
    emit_all(it, 0, C.encode_promise("x", 10))
    it.emit(0, C.eos_id)
    assert not it.done
    it.emit(1, C.control.async_close)
    assert it.done


def test_a_chunk_that_has_ended_still_waits_for_its_own_chunks():
    it = start()
    emit_all(it, 0, C.encode_promise("x", 10))
    emit_all(it, 1, C.encode_promise("y", 10))
    it.emit(0, C.control.sync)
    it.emit(1, C.control.async_close)
    assert it.live_threads == [2]
    assert Join(0, (1,)) in it.emit(2, C.control.async_close)


def test_the_critical_path_is_the_longest_chain_of_steps():
    tag = len(C.encode_promise("x", 10))
    it = start()
    it.drive(0, response(Document((Chunk("x", 10, (Text("abcdefgh"),)), Sync(), Text("z")))))
    chunk = len(C.encode_text("abcdefgh")) + 1
    assert it.critical_path == tag + chunk + len(C.encode_text("z")) + 1


def test_two_chunks_decode_at_the_same_time():
    chunk = Chunk("x", 10, (Text("abcdefgh"),))
    it = start()
    it.drive(0, response(Document((chunk, chunk))))
    tag = len(C.encode_promise("x", 10))
    assert it.critical_path == 2 * tag + len(C.encode_text("abcdefgh")) + 1


def test_the_trace_knows_forks_waits_and_lanes():
    it = start()
    it.drive(0, response(TWO))
    trace = it.trace()
    assert [thread.path for thread in trace.threads] == [(), (0,), (1,)]
    assert sum(trace.lanes()) == trace.num_tokens - 2  # <async> is given, not decoded
    assert trace.threads[1].forked_at == trace.threads[1].steps[0] - 1
    assert [thread.estimate for thread in trace.threads] == [0, 10, 20]


@pytest.mark.timeout(10)
def test_a_trace_of_many_chunks_is_made_in_a_moment():
    """Each was searched for among all of them: half a minute for these."""
    main, *chunks = (
        Thread(number, (number,), 0 if number else None, 1, segment=0, next_position=0, clock=0)
        for number in range(40_000)
    )
    main.steps = [chunk.id for chunk in chunks]
    main.children = [(chunk.id, chunk.id) for chunk in chunks]
    trace = trace_of([main, *chunks], 1, 0)
    assert [thread.forked_at for thread in trace.threads] == [*range(40_000)]


def test_a_chunk_that_forks_keeps_its_own_topic_and_estimate():
    inner = (Chunk("b", 20, (Text("x"),)), Chunk("c", 30, ()))
    it = start()
    it.drive(0, response(Document((Chunk("a", 10, inner),))))
    named = {thread.path: (C.decode_text(thread.topic_ids), thread.estimate) for thread in it.trace().threads}
    assert named == {(): ("", 0), (0,): ("a", 10), (0, 0): ("b", 20), (0, 1): ("c", 30)}


def test_a_token_out_of_place_changes_nothing():
    it = start()
    before = it.response_ids()
    for token in (C.control.close, C.control.async_close, C.control.async_open):
        with pytest.raises(ConstraintError):
            it.emit(0, token)
    assert it.response_ids() == before
    assert it.take_feeds() == []
