"""The OpenAPI page and the readers of bodies agree on which requests are right."""

import json

import jsonschema
import pytest

from serve.errors import ApiError
from serve.gateway import openapi
from serve.gateway.api import ChatRequest, CompletionRequest, read_chat_request, read_completion_request
from serve.gateway.tokens import TokenizeText, read_tokenize_request

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = (ChatRequest, read_chat_request, {"model": "m", "messages": HELLO})
TEXT = (CompletionRequest, read_completion_request, {"model": "m", "prompt": "a"})
TOKENIZE = (TokenizeText, read_tokenize_request, {"model": "m"})


@pytest.mark.parametrize(
    ("route", "fields", "right"),
    [
        (CHAT, {}, True),
        (CHAT, {"pasta": None, "temperature": None}, True),
        (CHAT, {"model": None}, False),
        (CHAT, {"stream_options": {"include_usage": True}}, False),
        (CHAT, {"stream_options": {"include_usage": True}, "stream": True}, True),
        (CHAT, {"pasta": {"events": True}}, False),
        (CHAT, {"pasta": {"events": None, "drafts": None, "promise_bias": None}}, True),
        (CHAT, {"top_logprobs": 2}, False),
        (CHAT, {"top_logprobs": 2, "logprobs": True}, True),
        (CHAT, {"response_format": {"type": "json_object"}}, True),
        (CHAT, {"response_format": {"type": "json_object"}, "ignore_eos": True}, False),
        (CHAT, {"response_format": {"type": "text"}, "ignore_eos": True}, True),
        (CHAT, {"logit_bias": {"5": 1.5}}, True),
        (CHAT, {"logit_bias": {"five": 1.5}}, False),
        (CHAT, {"tools": []}, True),
        (CHAT, {"tools": [{}]}, False),
        (
            CHAT,
            {"messages": [{"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}]},
            True,
        ),
        (CHAT, {"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}, False),
        (CHAT, {"messages": [*HELLO, {"role": "assistant", "content": None}]}, True),
        (CHAT, {"messages": [*HELLO, {"role": "assistant"}]}, True),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, False),
        (CHAT, {"messages": [{"role": "system"}]}, False),
        (CHAT, {"n": 3, "best_of": 3}, True),
        (TEXT, {"n": 1, "best_of": 1}, True),
        (TEXT, {"n": 9, "best_of": 9}, False),
        (CHAT, {"max_tokens": 5.0}, True),
        (CHAT, {"max_tokens": 5.5}, False),
        (TEXT, {"max_tokens": 0}, False),
        (TEXT, {"max_tokens": 0, "echo": True}, True),
        (TEXT, {"echo": True, "logprobs": 1, "stream": True}, False),
        (TEXT, {"prompt": ["a"] * 32}, True),
        (TEXT, {"prompt": ["a"] * 33}, False),
        (TEXT, {"structured_outputs": {"regex": "a", "json": None}}, True),
        (TEXT, {"structured_outputs": {"regex": "a", "json": {}}}, False),
        (TEXT, {"structured_outputs": {"json": "{}"}}, True),
        (TEXT, {"structured_outputs": {}}, False),
        (CHAT, {"guided_json": "{}"}, True),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False, "budget": 3}}, True),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": "no"}}, False),
        (TEXT, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (TOKENIZE, {"prompt": "a"}, True),
        (TOKENIZE, {"messages": [{**HELLO[0], "refusal": None}], "prompt": None}, True),
        (TOKENIZE, {"messages": [*HELLO, {"role": "assistant", "content": None}]}, True),
        (TOKENIZE, {"messages": [{"role": "user"}]}, False),
        (TOKENIZE, {"messages": HELLO, "prompt": "a"}, False),
        (TOKENIZE, {}, False),
        (TOKENIZE, {"prompt": "a", "add_special_tokens": True}, True),
        (TOKENIZE, {"messages": HELLO, "add_special_tokens": False}, True),
        (TOKENIZE, {"messages": HELLO, "add_special_tokens": None}, True),
        (TOKENIZE, {"messages": HELLO, "add_special_tokens": True}, False),
        (TOKENIZE, {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}, True),
        (TOKENIZE, {"prompt": "a", "chat_template_kwargs": {}}, True),
        (TOKENIZE, {"prompt": "a", "chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_the_page_takes_what_the_reader_takes(route, fields, right):
    model, read, body = route
    body = {**body, **fields}
    content = openapi.body_of(model)["requestBody"]["content"]["application/json"]
    assert jsonschema.Draft202012Validator(content["schema"]).is_valid(body) is right
    if right:
        read(json.dumps(body).encode())
    else:
        with pytest.raises(ApiError):
            read(json.dumps(body).encode())


def test_a_service_without_keys_asks_for_none():
    page = {
        "paths": {"/a": {"get": {"summary": "A", "security": [{"HTTPBearer": []}]}}},
        "components": {"schemas": {}, "securitySchemes": {"HTTPBearer": {}}},
    }
    assert openapi.without_keys(page) == {
        "paths": {"/a": {"get": {"summary": "A"}}},
        "components": {"schemas": {}},
    }
