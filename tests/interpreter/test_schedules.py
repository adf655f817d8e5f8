"""The same response, whatever the order in which threads run; snapshots; text in reading order."""

import random

import pytest

from pasta.interpreter import ConstraintError, Interpreter, Limits, ReadingOrder, linearise
from pasta.lang import render
from tests.support.documents import random_document
from tests.support.tokenizers import codec

C = codec()
PROMPT = [5, 6, 7]
WIDE = Limits(max_depth=9, max_tokens=100_000, max_chunk_tokens=100_000, max_threads=1000)


def scripts(document):
    """Each thread's tokens, by path."""
    it = Interpreter(C.grammar, WIDE, PROMPT, strict=False)
    it.drive(0, [*C.encode(document), C.eos_id])
    return {t.path: t.tokens for t in it.threads}, it


def run_in_random_order(document, seed):
    rng = random.Random(seed)
    tokens, _ = scripts(document)
    it = Interpreter(C.grammar, WIDE, PROMPT, strict=False)
    while not it.done:
        t = it.threads[rng.choice(it.live_threads)]
        it.emit(t.id, tokens[t.path][len(t.tokens)])
    return it


def visibility(it):
    """Which (thread, index) sees which, by names that do not depend on numbering."""
    rows = [(t.path, i, s) for t in it.threads for i, s in enumerate(t.segments)]
    return {
        (q[:2], k[:2])
        for q in rows
        for k in rows
        if it.sees[q[2]] >> k[2] & 1 and (q[2] != k[2] or k[1] <= q[1])
    }


@pytest.mark.parametrize("seed", range(25))
def test_the_order_of_threads_changes_nothing(seed):
    document = random_document(seed)
    _, stored = scripts(document)
    shuffled = run_in_random_order(document, seed + 1)
    assert shuffled.response_ids() == stored.response_ids()
    assert shuffled.critical_path == stored.critical_path
    assert visibility(shuffled) == visibility(stored)
    assert {t.path: t.positions for t in shuffled.threads} == {t.path: t.positions for t in stored.threads}


@pytest.mark.parametrize("seed", range(25))
def test_a_snapshot_holds_exactly_what_the_chunk_sees(seed):
    document = random_document(seed)
    it = run_in_random_order(document, seed)
    rows = linearise(C.grammar, PROMPT, it.response_ids())
    stored = Interpreter(C.grammar, WIDE, PROMPT, strict=False)
    stored.drive(0, it.response_ids())
    opened = [i for i, token in enumerate(rows.token_ids) if token == C.control.async_open]
    for t, row in zip(stored.threads[1:], opened, strict=True):
        seen = [
            (rows.token_ids[k], rows.positions[k])
            for k in range(row)
            if rows.sees[rows.segments[row]] >> rows.segments[k] & 1
        ]
        snapshot = next(it.snapshot(other.id) for other in it.threads if other.path == t.path)
        assert sorted(zip(snapshot.token_ids, snapshot.positions, strict=True)) == sorted(seen)
        assert snapshot.start_position == rows.positions[row]


@pytest.mark.parametrize("seed", range(10))
def test_a_chunk_decoded_elsewhere_has_the_same_places(seed):
    document = random_document(seed, depth=3)
    it = run_in_random_order(document, seed)
    for t in it.threads[1:]:
        remote = Interpreter.for_chunk(C.grammar, WIDE, it.snapshot(t.id), strict=False)
        remote.drive(0, it.response_ids(t.id))
        home = {u.path: u.positions for u in it.threads if u.path[: len(t.path)] == t.path}
        assert {u.path: u.positions for u in remote.threads} == home
        assert remote.response_ids() == it.response_ids(t.id)


@pytest.mark.parametrize("cut", [1, 3])
def test_driving_ids_that_end_too_early_is_refused(cut):
    document = random_document(3)
    ids = [*C.encode(document), C.eos_id]
    it = Interpreter(C.grammar, WIDE, PROMPT, strict=False)
    with pytest.raises(ConstraintError):
        it.drive(0, ids[:-cut])


def test_text_is_given_out_in_reading_order():
    order = ReadingOrder()
    order.text(0, "A ")
    order.fork(0, 1)
    order.text(0, " C")
    assert order.take_parts() == ["A "]
    order.text(1, "b")
    assert order.take_parts() == ["b"]
    order.text(1, "b")
    order.finish(1)
    assert order.take_parts() == ["b", " C"]


@pytest.mark.parametrize("seed", range(15))
def test_reading_order_gives_the_rendered_document(seed):
    document = random_document(seed)
    rng = random.Random(seed)
    tokens, _ = scripts(document)
    it = Interpreter(C.grammar, WIDE, PROMPT, strict=False)
    order, shown = ReadingOrder(), ""
    while not it.done:
        t = it.threads[rng.choice(it.live_threads)]
        token = tokens[t.path][len(t.tokens)]
        in_text = t.mode == 0
        children = len(t.children)
        it.emit(t.id, token)
        if len(t.children) > children:
            order.fork(t.id, t.children[-1][1])
        elif in_text and C.grammar.text_mask[token]:
            order.text(t.id, C.decode_text([token]))
        if not t.running and t.tokens[-1] in (C.eos_id, C.control.async_close):
            order.finish(t.id)
        shown += "".join(order.take_parts())
    assert shown == render(document) or "\ufffd" in shown
