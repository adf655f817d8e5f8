"""Structured output over HTTP: whatever the weights say, the text follows what was asked for."""

import json
import re

import openai
import pytest

MODEL = "pasta-atlas"
HELLO = [{"role": "user", "content": "Tell me about France"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "country", "schema": SCHEMA, "strict": True}}
OPTIONS = {"model": MODEL, "messages": HELLO, "max_tokens": 200, "temperature": 1.2, "seed": 3}


def assert_follows(text):
    found = json.loads(text)
    assert list(found) == ["name", "size"]
    assert len(found["name"]) <= 12
    assert found["size"] in ("small", "large")


def test_each_of_several_choices_follows_the_schema_streamed_or_not(client):
    whole = client.chat.completions.create(**OPTIONS, n=3, response_format=FORMAT)
    streamed = {}
    for chunk in client.chat.completions.create(**OPTIONS, n=3, response_format=FORMAT, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    for choice in whole.choices:
        assert_follows(choice.message.content)
        assert choice.pasta["mode"] == "sequential"
    assert streamed == {choice.index: choice.message.content for choice in whole.choices}


def test_the_client_s_own_parser_takes_it(client):
    pydantic = pytest.importorskip("pydantic")
    country = pydantic.create_model("Country", size=(str, pydantic.Field(pattern="^(small|large)$")))
    answer = client.chat.completions.parse(**OPTIONS, response_format=country)
    assert answer.choices[0].message.parsed.size in ("small", "large")


def test_a_completion_matches_its_regular_expression(client):
    body = {"guided_regex": "(yes|no)[.!]"}
    answer = client.completions.create(model=MODEL, prompt="France", max_tokens=20, extra_body=body)
    assert re.fullmatch(body["guided_regex"], answer.choices[0].text)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_regex": "(a|b"}, "guided_regex"),
        ({"guided_regex": "a{1000000}"}, "guided_regex"),
        ({"structured_outputs": {"json": {"type": "strin"}}}, "structured_outputs.json"),
        ({"guided_regex": "a", "pasta": {"mode": "parallel"}}, "pasta.mode"),
        (
            {"response_format": {**FORMAT, "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_format",
        ),
    ],
)
def test_a_bad_structure_is_one_refusal_that_names_the_key(client, body, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", extra_body=body)
    assert refused.value.param == param
    assert "\n" not in refused.value.body["message"]
