"""Annotations are put right where there is only one way to, and refused with a reason elsewhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.annotate.repair import Unrepairable, read_annotation
from pasta.lang import render, strip, to_text
from tests.support.documents import random_document

ANSWER = "Two drinks. Tea is leaves.\n\nCoffee is <b>beans</b>.<br/>\nBoth are hot."
TEA = '<promise topic="tea" tokens="10"/><async> Tea is leaves.</async>'


def annotated(text: str, strip_mode: str = "whitespace") -> str:
    read = read_annotation(text, ANSWER, strip_mode)  # type: ignore[arg-type]
    assert render(read.document) == ANSWER
    return to_text(read.document)


GOOD = f"Two drinks.{TEA}\n\nCoffee is <b>beans</b>.<br\\/>\nBoth are hot."


def test_what_is_right_is_left_alone() -> None:
    assert read_annotation(GOOD, ANSWER, "exact").repaired is False
    assert annotated(GOOD, "exact") == GOOD


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("<br\\/>", "<br/>"),
        f"```markdown\n{GOOD}\n```",
        f"\n{GOOD}\n",
        GOOD.replace('tokens="10"', 'tokens="7"'),
        GOOD.replace(' tokens="10"', ""),
        GOOD.replace('topic="tea" tokens="10"/', "tokens='10'  topic='tea' /"),
        GOOD.replace("/><async>", "/>\n<async>"),
        GOOD.replace('<promise topic="tea"', '<promise topic="<tea>"').replace("<tea>", "tea"),
    ],
)
def test_a_slip_in_writing_tags_is_put_right_even_when_asked_to_be_exact(text: str) -> None:
    assert annotated(text, "exact") == GOOD


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n\n", "\n"),
        GOOD.replace("drinks.<promise", "drinks.\n<promise").replace("<async> Tea", "<async>Tea"),
        GOOD.replace("Both", " Both"),
    ],
)
def test_white_space_is_the_answer_s_own_if_it_may_differ(text: str) -> None:
    assert strip(annotated(text)) == ANSWER
    with pytest.raises(Unrepairable) as caught:
        annotated(text, "exact")
    assert caught.value.code == "differs"


def test_a_space_before_a_chunk_goes_where_the_annotation_has_it() -> None:
    outside = GOOD.replace("drinks.<promise", "drinks. <promise").replace("<async> Tea", "<async>Tea")
    assert annotated(outside + "\n") == outside


def test_a_topic_that_is_none_is_replaced() -> None:
    assert '<promise topic="Tea is leaves" tokens' in annotated(GOOD.replace('"tea"', '""'))
    long = " ".join(["word"] * 40)
    assert f'topic="{" ".join(["word"] * 8)}"' in annotated(GOOD.replace('"tea"', f'"{long}"'))


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (GOOD.replace("leaves", "leafs"), "differs", "at word 5 expected 'leaves. Coffee is"),
        (GOOD.replace("Both are hot.", ""), "differs", "got 'the end'"),
        (GOOD.replace("</async>", ""), "malformed", "the chunk 'tea' is never closed"),
        (GOOD.replace(TEA, " Tea is leaves.</async>"), "malformed", "</async> without a promise"),
        ("", "differs", "got 'the end'"),
    ],
)
def test_what_cannot_be_put_right_has_a_reason(text: str, code: str, expected: str) -> None:
    with pytest.raises(Unrepairable) as caught:
        annotated(text)
    assert caught.value.code == code
    assert expected in str(caught.value)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_documents_that_lost_their_line_breaks_get_them_back(seed: int) -> None:
    document = random_document(seed)
    answer = render(document)
    read = read_annotation(to_text(document).replace("\n", " "), answer, "whitespace")
    assert render(read.document) == answer
    assert len([*read.document.chunks()]) == len([*document.chunks()])
