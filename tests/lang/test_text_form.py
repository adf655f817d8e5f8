"""The text form: parse, print, strip, and errors that say where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.lang import CONTROL_TOKENS, Chunk, Document, ParseError, Sync, Text, parse, render, strip, to_text
from tests.support.documents import documents, texts

PLAIN = '<promise topic="a" tokens="10"/><async>x</async>'


@given(documents)
def test_parse_inverts_print(document):
    assert parse(to_text(document)) == document


@given(st.text())
def test_an_answer_without_tags_is_its_own_annotation_once_escaped(answer):
    assert strip(to_text(Document((Text(answer),)))) == answer


@given(texts, texts)
def test_strip_gives_the_original_answer(before, inside):
    document = Document((Text(before), Chunk("t", 10, (Text(inside),)), Sync()))
    assert strip(to_text(document)) == before + inside


def test_a_document_is_read_in_storage_order():
    assert parse(f"See {PLAIN}<sync/> end") == Document(
        (Text("See "), Chunk("a", 10, (Text("x"),)), Sync(), Text(" end"))
    )


@pytest.mark.parametrize("depth", [101, 3000])
def test_chunks_nest_a_hundred_deep_and_no_deeper(depth):
    def nested(levels):
        return '<promise topic="x" tokens="10"/><async>' * levels + "</async>" * levels

    document = parse(nested(100))
    assert document.depth() == 100
    assert to_text(document) == nested(100)
    with pytest.raises(ParseError, match="expected chunks nested at most 100 levels deep"):
        parse(nested(depth))
    with pytest.raises(ValueError, match="nested too deeply, expected at most 100 levels"):
        Chunk("x", 10, document.items)


def test_chunks_nest():
    document = parse(f'<promise topic="outer" tokens="20"/><async>{PLAIN}</async>')
    assert document.depth() == 2
    assert [chunk.topic for chunk in document.chunks()] == ["outer", "a"]


@pytest.mark.parametrize("tag", CONTROL_TOKENS)
def test_a_backslash_makes_a_tag_literal(tag):
    assert parse(f"a \\{tag} b") == Document((Text(f"a {tag} b"),))


def test_two_backslashes_before_a_tag_are_one_backslash_and_a_tag():
    assert parse("a\\\\<sync/>") == Document((Text("a\\"), Sync()))


def test_backslashes_elsewhere_are_kept():
    assert render(parse(r"\frac{1}{2} \\ \n")) == r"\frac{1}{2} \\ \n"


@pytest.mark.timeout(10)
def test_a_long_run_of_backslashes_is_read_and_printed_in_a_moment():
    """It was tried again from each of them: ten minutes for this one."""
    run = "\\" * 500_000
    for text in (run, f"{run}a<sync/>"):
        assert to_text(parse(text)) == text


@pytest.mark.timeout(10)
def test_many_literal_tags_are_read_in_a_moment():
    """The text before was copied for each of them: minutes for these."""
    text = f"{'a' * 100}\\<sync/>" * 100_000
    assert parse(text).items == (Text(text.replace("\\", "")),)


def test_neighbouring_texts_are_one():
    assert Document((Text("a"), Text(""), Text("b"))) == Document((Text("ab"),))


@pytest.mark.parametrize(
    ("source", "line", "column", "expected"),
    [
        ("a</async>", 1, 2, "no </async> outside a chunk"),
        ("one\ntwo <async>", 2, 5, "a promise before <async>"),
        ("x/>", 1, 2, "an open promise before />"),
        ('<promise topic="a" tokens="15"/><async></async>', 1, 28, "a positive multiple of 10"),
        ('<promise topic="a" tokens="0"/><async></async>', 1, 28, "a positive multiple of 10"),
        (f'<promise topic="a" tokens="1{"0" * 9}"/><async></async>', 1, 28, "a number of at most 9 digits"),
        (
            f'<promise topic="a" tokens="1{"0" * 9999}"/><async></async>',
            1,
            28,
            "a number of at most 9 digits",
        ),
        ('<promise topic="a<b" tokens="10"/><async></async>', 1, 17, "a topic of 1 to 64 characters"),
        ('<promise topic="" tokens="10"/><async></async>', 1, 17, "a topic of 1 to 64 characters"),
        ('<promise tokens="10"/><async></async>', 1, 9, "' topic=\"'"),
        ('<promise topic="a" tokens="10"/> <async></async>', 1, 33, "'<async>'"),
        ('\n<promise topic="a" tokens="10"/><async>x', 2, 41, "</async> for the chunk 'a' opened in line 2"),
    ],
)
def test_an_error_says_line_column_and_what_was_expected(source, line, column, expected):
    with pytest.raises(ParseError) as caught:
        parse(source)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("topic", ["", "x" * 65, 'a"b', "a<b", "a\nb"])
def test_a_topic_is_a_short_phrase(topic):
    with pytest.raises(ValueError, match="topic"):
        Chunk(topic, 10, ())


@pytest.mark.parametrize("tokens", [0, -10, 15])
def test_an_estimate_is_a_positive_multiple_of_ten(tokens):
    with pytest.raises(ValueError, match="multiple of 10"):
        Chunk("a", tokens, ())
