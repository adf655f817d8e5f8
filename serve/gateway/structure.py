"""Reads the structure that a request wants for its answer: OpenAI's ``response_format``, and vLLM's parameters."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError, to_json

from pasta.engine.structure import MAX_CHARS, Grammar
from serve.errors import ApiError
from serve.gateway.body import read_object
from serve.gateway.openapi import NULL, Schema, described, exactly_one

#: Names of the parameters, in the order of their precedence in messages.
NAMES = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextFormat(_Strict):
    """No structure."""

    type: Literal["text"]


class JsonFormat(_Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(_Strict):
    """A named schema. ``strict`` has no effect: every schema is enforced."""

    name: str = Field(max_length=64)
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(_Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")]
#: vLLM takes a schema as JSON text too.
SchemaOrText = dict[str, Any] | str
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=256, fail_fast=True)
]


class StructuredOutputs(_Strict):
    """vLLM's ``structured_outputs``: one of these."""

    model_config = ConfigDict(
        json_schema_extra=described(
            exactly_one(
                {"json": ["object", "string"], "regex": "string", "choice": "array", "json_object": "boolean"}
            )
        )
    )

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: str | None = Field(default=None, min_length=1)
    choice: Choices | None = None
    json_object: Literal[True] | None = None


#: Values that ask for no structure.
_NOTHING: dict[str, Schema] = {
    **dict.fromkeys(NAMES, NULL),
    "response_format": {"enum": [{"type": "text"}, None]},
}
_BESIDE: dict[str, Schema] = {
    "min_tokens": {"enum": [0, None]},
    "ignore_eos": {"enum": [False, None]},
    "pasta": {"properties": {"mode": {"enum": ["sequential", None]}}},
}
#: Rules for the OpenAPI page: with a structure, no parameter that continues past its end or that asks for promises.
#: That a request has one structure at most is said in words only: with that rule too, Schemathesis' generators give up.
RULE: Schema = {"anyOf": [{"properties": _NOTHING}, {"properties": _BESIDE}]}


class Structured(_Strict):
    """The parameters of a request that give its answer a structure: one at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = Field(default=None, min_length=1)
    guided_choice: Choices | None = None

    def grammar(self) -> Grammar | None:
        """The grammar that the answer's text must follow. Raises ``ApiError`` 400 if the request gives two
        structures."""
        found = [grammar for name in NAMES for grammar in self._grammars(name)]
        if len(found) > 1:
            raise ApiError(
                f"{found[1].param}: it does not go with {found[0].param}; send one of them.",
                param=found[1].param,
            )
        return found[0] if found else None

    def _grammars(self, name: str) -> list[Grammar]:
        given = getattr(self, name)
        if given is None or isinstance(given, TextFormat):
            return []
        if isinstance(given, JsonFormat):
            return [_schema({"type": "object"}, name)]
        if isinstance(given, SchemaFormat):
            return [_schema(given.json_schema.schema_, name)]
        if isinstance(given, StructuredOutputs):
            parts = {
                "json": None if given.json_ is None else _read(given.json_, f"{name}.json"),
                "regex": given.regex,
                "choice": given.choice,
                "json_object": {"type": "object"} if given.json_object else None,
            }
            named = {f"{name}.{key}": value for key, value in parts.items() if value is not None}
            if not named:
                raise ApiError(f"{name}: expected one of json, regex, choice, json_object.", param=name)
            return [_grammar(value, param) for param, value in named.items()]
        if name == "guided_json":
            given = _read(given, name)
        return [_grammar(given, name)]


def _read(given: SchemaOrText, param: str) -> dict[str, Any]:
    """The schema that the parameter is, or that its text is the JSON of."""
    if not isinstance(given, str):
        return given
    _check_length(len(given), param)
    return read_object(given.encode(), param, param)


def _grammar(given: dict[str, Any] | list[str] | str, param: str) -> Grammar:
    if isinstance(given, dict):
        return _schema(given, param)
    _check_length(len(given) if isinstance(given, str) else sum(map(len, given)), param)
    if isinstance(given, list):
        given = "|".join(map(re.escape, given))
    return Grammar("regex", given, param)


def _schema(schema: dict[str, Any], param: str) -> Grammar:
    try:
        # Not json's, which makes an object of each value first.
        text = to_json(schema, inf_nan_mode="constants").decode()
    except PydanticSerializationError:
        raise ApiError(f"{param}: it is nested too deeply.", param=param) from None
    _check_length(len(text), param)
    return Grammar("json_schema", text, param)


def _check_length(chars: int, param: str) -> None:
    """Refuse a grammar that is too long for any model, before anything spends time on it."""
    if chars > MAX_CHARS:
        raise ApiError(f"{param}: {chars} characters, expected at most {MAX_CHARS}.", param=param)
