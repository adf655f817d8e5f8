"""What a request says of its answer's structure."""

import json

import pytest

from serve.errors import ApiError
from serve.gateway.api import read_chat_request


@pytest.mark.parametrize("start", range(800, 1000, 20))
def test_a_schema_of_any_depth_is_read_or_refused(start):
    def status(depth):
        schema = '{"a":' * depth + "1" + "}" * depth
        body = f'{{"model":"m","messages":[{{"role":"user","content":"x"}}],"guided_json":{schema}}}'
        try:
            read_chat_request(body.encode())
        except ApiError as error:
            return error.status
        return 200

    # Python's own limit is somewhere there.
    assert {status(depth) for depth in range(start, start + 20)} <= {200, 400}


@pytest.mark.parametrize(
    ("asked", "default", "mode"),
    [
        ("", "parallel", "parallel"),
        (',"guided_regex":"a"', "parallel", "sequential"),
        (',"pasta":{"mode":"sequential"}', "parallel", "sequential"),
        ("", "sequential", "sequential"),
    ],
)
def test_a_structured_answer_is_decoded_and_counted_as_a_sequential_one(asked, default, mode):
    body = f'{{"model":"m","messages":[{{"role":"user","content":"x"}}]{asked}}}'
    assert read_chat_request(body.encode()).order("r").decoding_mode(default) == mode


def test_one_answer_has_one_structure():
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"guided_regex":"a","guided_choice":["b"]}'
    )
    with pytest.raises(ApiError) as refused:
        read_chat_request(body)
    assert (refused.value.status, refused.value.param) == (400, "guided_choice")


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("guided_regex", "a" * 100_001),
        ("guided_choice", ["." * 600] * 200),
        ("guided_json", {"enum": ["a" * 100_001]}),
        ("guided_json", '{"enum": ["' + "a" * 100_001),
        ("structured_outputs.choice", ["." * 600] * 200),
    ],
)
def test_what_is_too_long_for_a_grammar_is_refused_before_it_is_made_into_one(param, value, monkeypatch):
    monkeypatch.setattr("serve.gateway.structure.re.escape", lambda _: pytest.fail("it was escaped"))
    name, _, inner = param.partition(".")
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        name: {inner: value} if inner else value,
    }
    with pytest.raises(ApiError, match="characters, expected at most 100000") as refused:
        read_chat_request(json.dumps(body).encode()).order("r")
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("param", ["guided_json", "structured_outputs.json"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a JSON object."),
        ("name: string", "is not a JSON object."),
        ("[1]", "is not a JSON object."),
        ('{"type"}', "is not valid JSON: Expecting ':' delimiter: line 1 column 8 (char 7)."),
        ('{"a":[' + "[]," * 3000 + "1]}", "holds more than 3000 objects and lists."),
        ('{"enum":[' + "1" * 101 + "]}", "holds a number of more than 100 digits."),
        ("{" + ",".join(f'"{n}":1' for n in range(513)) + "}", "holds an object with more than 512 members."),
    ],
    ids=["empty", "no JSON", "a list", "broken", "many lists", "a long number", "many members"],
)
def test_a_schema_as_text_is_checked_as_a_body_is(param, text, said):
    name, _, inner = param.partition(".")
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    body[name] = {inner: text} if inner else text
    with pytest.raises(ApiError) as refused:
        read_chat_request(json.dumps(body).encode())
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message == f"{param} {said}"


def test_a_schema_as_text_may_not_be_nested_too_deeply():
    """The parser refuses it, or, from Python 3.13 on, the grammar does."""
    text = '{"a":' * 2999 + "1" + "}" * 2999
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "guided_json": text}
    with pytest.raises(ApiError, match=r"^guided_json.*it is nested too deeply\.$") as refused:
        read_chat_request(json.dumps(body).encode())
    assert refused.value.status == 400
