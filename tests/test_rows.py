"""JSON values and rows: everything that is wrong with one is a UserError of one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.errors import UserError
from pasta.rows import MAX_DEPTH, NotJson, messages_of, parse_json, prompt_of, read_rows, read_whole_rows

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@given(values)
def test_what_is_written_is_read(value):
    assert parse_json(json.dumps(value)) == json.loads(json.dumps(value))


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_value_or_one_line(data):
    told = ""
    try:
        parse_json(data)
    except NotJson as error:
        told = str(error)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\xff", "byte 1 is not UTF-8"),
        ("", "not JSON: Expecting value at column 1"),
        ("[1,\n2", "not JSON: Expecting ',' delimiter at line 2, column 2"),
        ('{"a": "\t"}', "not JSON: Invalid control character at column 8"),
        ('[{"a": 1, "b": 2, "a": 3}]', "key 'a' is given twice"),
        ("[" * 100_000, "nested too deeply, expected at most 100 levels"),
        ("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested too deeply"),
        ("9" * 5000, "a number of thousands of digits"),
        ('"\\ud800"', "text: character 1 is half of a surrogate pair"),
        ('{"a": [{"b": "x\\uDFFF"}]}', "a[0].b: character 2 is half of a surrogate pair"),
        ('{"\\udead": 1}', "a key: character 1 is half of a surrogate pair"),
    ],
)
def test_what_is_no_value_is_refused_with_its_place(text, expected):
    with pytest.raises(NotJson) as caught:
        parse_json(text)
    assert expected in str(caught.value)


def test_a_hundred_levels_and_whole_pairs_are_read():
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


def test_rows_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": "\xe2\x80\xa8"}\n3\n')
    rows = read_rows(path, row="a row")
    assert [next(rows), next(rows)] == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "\u2028"})]
    with pytest.raises(UserError, match=r"a.jsonl:4: expected a row, got a number"):
        next(rows)
    assert read_whole_rows(path) == [{"a": 1}, {"a": "\u2028"}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "messages: expected a list of objects with 'role' and 'content'"),
        ("a", "messages: expected a list of objects"),
        ([3], "messages: message 1: expected 'role' and 'content'"),
        ([{"role": "user"}], "message 1: expected 'role' and 'content'"),
        ([{"role": "user", "content": 3}], "message 1: content: expected a string, got a number"),
        ([{"role": "wizard", "content": "a"}], "message 1: role 'wizard': expected system, developer, user, assistant"),
        ([{"role": ["user"], "content": "a"}], "message 1: role ['user']: expected system"),
    ],
)  # fmt: skip
def test_messages_of_another_form_are_refused(messages, expected):
    with pytest.raises(UserError) as caught:
        messages_of({"messages": messages})
    assert expected in str(caught.value)


def test_a_prompt_is_a_text_or_messages():
    user = [{"role": "user", "content": "a"}]
    assert prompt_of({"prompt": "a"}) == prompt_of({"prompt": user}) == prompt_of({"messages": user}) == user
    assert prompt_of({}) is None
    assert messages_of({"messages": [{"role": "developer", "content": "a", "name": "x"}]}) == [
        {"role": "system", "content": "a"}
    ]
