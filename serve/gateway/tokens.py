"""Reads requests for /tokenize and /detokenize, in vLLM's shapes. No I/O."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serve.errors import ApiError
from serve.gateway.api import Message, TokenId
from serve.gateway.body import read_object
from serve.gateway.openapi import NULL, Schema, described, exactly_one
from serve.gateway.options import TemplateOptions
from serve.gateway.reading import refuse_unsupported_in_messages, validated
from serve.wire import PromptInput


class _Tokens(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    model: str


def _either(name: str, **others: Schema) -> Schema:
    """Objects without the member ``name``, or whose other members follow ``others``."""
    return {"anyOf": [{"properties": {name: NULL}}, {"properties": others}]}


class TokenizeText(_Tokens):
    """The body of POST /tokenize: a text, or the messages of a conversation instead. They may have more tokens than
    the model takes."""

    model_config = ConfigDict(
        json_schema_extra=described(
            exactly_one({"prompt": "string", "messages": "array"}),
            _either("messages", add_special_tokens={"enum": [False, None]}),
            _either("prompt", chat_template_kwargs={"enum": [{}, None]}),
        ),
    )

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool = Field(
        default=True,
        description="begin a text as /v1/completions does; a conversation begins as its template says",
    )
    add_generation_prompt: Literal[True] = True
    chat_template_kwargs: TemplateOptions | None = None
    return_token_strs: bool | None = None

    @property
    def input(self) -> PromptInput:
        """The text or the messages to encode."""
        return self.prompt if self.prompt is not None else [m.plain() for m in self.messages or ()]


class DetokenizeText(_Tokens):
    """The body of POST /detokenize."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def read_tokenize_request(body: bytes) -> TokenizeText:
    """Parse and check a request's body. Raises ``ApiError`` 400 that names the parameter."""
    data = read_object(body)
    refuse_unsupported_in_messages(data)
    request = validated(data, TokenizeText)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError("prompt: expected either it or messages.", param="prompt")
    if request.chat_template_kwargs and request.messages is None:
        name = "chat_template_kwargs"
        raise ApiError(f"{name}: it goes with messages; a prompt has no chat template.", param=name)
    name = "add_special_tokens"
    if request.messages is not None and name in request.model_fields_set and request.add_special_tokens:
        raise ApiError(
            f"{name}: it goes with a prompt; messages begin as their chat template says.", param=name
        )
    return request


def read_detokenize_request(body: bytes) -> DetokenizeText:
    """Parse and check a request's body. Raises ``ApiError`` 400 that names the parameter."""
    return validated(read_object(body), DetokenizeText)
