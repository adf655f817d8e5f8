"""A thread that writes the same tokens again and again ends."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.errors import UserError
from pasta.interpreter import Interpreter, Limits, RepetitionDetection, chosen_among
from pasta.lang import parse, to_text
from tests.support.tokenizers import codec

C = codec()
CONTROL, GRAMMAR = C.control, C.grammar
A, B, D = C.encode_text("a b d")[:3]
DETECTIONS = st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(2, 4)).map(
    lambda sizes: RepetitionDetection(sizes[0] + sizes[1], sizes[0], sizes[2])
)
TOKENS = st.lists(st.integers(0, 2), max_size=14)


def interpreter(max_size: int, min_size: int = 1, count: int = 3, **limits) -> Interpreter:
    return Interpreter(
        GRAMMAR, Limits(repetition_detection=RepetitionDetection(max_size, min_size, count), **limits), [5, 6]
    )


def write(it: Interpreter, thread: int, tokens) -> Interpreter:
    for token in tokens:
        it.emit(thread, token)
    return it


def only_ends(it: Interpreter, thread: int = 0) -> bool:
    allowed = it.allowed(thread)
    end = CONTROL.async_close if thread else C.eos_id
    return allowed.base == "none" and end in allowed.extra


@settings(deadline=None)
@given(DETECTIONS, TOKENS)
def test_found_are_copies_behind_one_another_at_the_end(detection, tokens):
    def ends_in_copies(size: int) -> bool:
        tail = tokens[len(tokens) - size * detection.min_count :]
        return len(tail) == size * detection.min_count and tail == tail[:size] * detection.min_count

    sizes = range(detection.min_pattern_size, detection.max_pattern_size + 1)
    fits = [size for size in sizes if size * detection.min_count <= len(tokens)]
    assert detection.found(tokens) == any(ends_in_copies(size) for size in fits)


@settings(deadline=None)
@given(DETECTIONS, TOKENS, st.integers(0, 4))
def test_copies_are_in_reach_if_some_tokens_would_complete_them(detection, tokens, more):
    alphabet = {*tokens, 3}  # 3 stands for any token that is not there yet
    behind = itertools.product(alphabet, repeat=more)
    assert detection.within(tokens, more) == any(detection.found([*tokens, *own]) for own in behind)


def test_by_default_nothing_is_looked_for():
    it = write(Interpreter(GRAMMAR, Limits(), [5]), 0, [A] * 200)
    assert not only_ends(it)


def test_an_answer_that_repeats_itself_may_only_end():
    it = write(interpreter(4), 0, [D, A, B, A, B, A])
    assert not only_ends(it)
    it.emit(0, B)
    assert only_ends(it)
    it.emit(0, C.eos_id)
    assert it.done
    assert it.finish_reason == "repetition"


@pytest.mark.parametrize(
    ("sizes", "ends"), [((2, 1), True), ((1, 1), False), ((3, 3), False), ((6, 3), True)]
)
def test_only_patterns_of_the_sizes_asked_for_count(sizes, ends):
    """Six copies of two tokens are three of four."""
    assert RepetitionDetection(*sizes, 3).found([A, B] * 6) == ends


def test_an_answer_that_ends_by_itself_before_has_stopped():
    it = write(interpreter(4), 0, [A, B, A, B, C.eos_id])
    assert it.finish_reason == "stop"


def test_a_chunk_that_repeats_itself_ends_alone():
    it = interpreter(4)
    write(it, 0, [*C.encode_promise("x", 20), *C.encode_promise("y", 20)])
    write(it, 1, [A, A, A])
    assert only_ends(it, 1)
    assert not only_ends(it, 0)
    assert not only_ends(it, 2)
    write(it, 1, [CONTROL.async_close])
    write(it, 2, [A, B, CONTROL.async_close])
    write(it, 0, [CONTROL.sync, B, C.eos_id])
    assert it.finish_reason == "repetition"
    document = C.decode(it.response_ids())
    assert parse(to_text(document)) == document


def test_an_answer_that_promises_the_same_again_and_again_ends():
    promise = C.encode_promise("the largest", 20)
    it = interpreter(2 * len(promise), 4)
    write(it, 0, [*promise, *promise])
    assert not only_ends(it)
    write(it, 0, promise)
    assert only_ends(it)


def promising(most: int, *topics: str) -> Interpreter:
    """Has promised these topics, with a word behind each."""
    detection = RepetitionDetection(max_same_topic=most)
    it = Interpreter(GRAMMAR, Limits(repetition_detection=detection), [5, 6])
    for number, topic in enumerate(topics):
        write(it, 0, [*C.encode_promise(topic, 20 + 10 * number), A])
    return it


def test_an_answer_that_promises_one_topic_too_often_ends_whatever_stands_between():
    it = promising(2, "earth", "mars", "earth", "venus", "mars")
    assert not only_ends(it)
    write(it, 0, C.encode_promise("earth", 90))
    assert only_ends(it)
    assert not only_ends(it, 6)  # its last chunk goes on
    for thread in range(1, 7):
        write(it, thread, [CONTROL.async_close])
    write(it, 0, [C.eos_id])
    assert it.finish_reason == "repetition"


def test_topics_are_counted_in_each_thread_apart():
    it = promising(1, "earth")
    write(it, 1, C.encode_promise("earth", 20))
    assert not only_ends(it, 1)
    assert not only_ends(it)


def test_by_default_topics_are_not_counted():
    assert not only_ends(promising(0, *["earth"] * 8))


def test_inside_a_tag_nothing_ends():
    it = write(interpreter(4, max_topic_tokens=24), 0, C.encode_promise("x", 20)[: 1 + len(GRAMMAR.open_ids)])
    write(it, 0, [C.encode_text("a")[0]] * 4)
    assert it.allowed(0).base == "topic"


def test_where_room_ends_too_the_reason_is_length():
    it = write(interpreter(1, max_tokens=4), 0, [A, A, A, C.eos_id])
    assert it.finish_reason == "length"


def test_an_end_that_was_forced_had_no_choice():
    """Training that reads what a token was chosen among knows it."""
    it = write(interpreter(4), 0, [A, A, A, C.eos_id])
    among = chosen_among(GRAMMAR, it.limits, [5, 6], it.response_ids())
    assert among[-1].base == "none"
    assert among[-2].base == "text"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((-1, 1, 2), "max_pattern_size: -1"),
        ((2000, 1, 2), "max_pattern_size: 2000, expected an integer from 0 to 1,024"),
        ((True, 1, 2), "max_pattern_size: True"),
        ((4, 0, 2), "min_pattern_size: 0, expected an integer from 1"),
        ((4, 5, 2), "min_pattern_size: 5, expected at most max_pattern_size (4)"),
        ((4, 1, 1), "min_count: 1, expected an integer from 2"),
        ((4, 1, 2.0), "min_count: 2.0"),
        ((0, 1, 2, -1), "max_same_topic: -1, expected an integer from 0"),
    ],
)
def test_a_value_out_of_range_is_named(values, named):
    with pytest.raises(UserError) as caught:
        RepetitionDetection(*values)
    assert str(caught.value).startswith(named)
