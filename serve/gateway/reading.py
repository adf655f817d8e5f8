"""Checks what a request's JSON holds, and says its first mistake in one line. No I/O."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pasta.errors import expected_by
from serve.errors import ApiError

#: Parameters of OpenAI's API and of vLLM's that this service lacks, with the values that ask for nothing.
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "priority": (0,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
COMPLETION_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    **_NO_EFFECT,
    "add_special_tokens": (True,),
    "suffix": ("",),
}
CHAT_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    **_NO_EFFECT,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "continue_final_message": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True, False),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
#: The same for messages: fields of an assistant's turn that clients send back.
MESSAGE_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}

_PROMPT = "a text, texts, token ids or lists of token ids"
_PROMPT_ITEM = "a text, a token id from 0 on or a list of such ids"
_STOP = "a text or a list of texts"
#: Parameters that are a schema.
_SCHEMAS, _SCHEMA = ("guided_json", "structured_outputs.json"), "an object, or JSON text of one"
#: What a variable of the chat template may be.
_VARIABLES, _VARIABLE = "chat_template_kwargs", f"true, false or an integer below {2**31}"
#: Pydantic's names for a value that is no object: where one of a model, a dictionary or one of several models is due.
_NO_OBJECT = ("model_type", "dict_type", "model_attributes_type")
#: What pydantic's path of a mistake in a key ends with, behind the key.
_KEY = "[key]"
_UNION_MEMBER = re.compile(r"(str|constrained-str|(list|dict)\[.*\])$")

M = TypeVar("M", bound=BaseModel)


def validated(data: dict[str, Any], kind: type[M]) -> M:
    """Check a body. Raises ``ApiError`` 400 that names the parameter."""
    # A null is a parameter that was not given.
    data = {key: value for key, value in data.items() if value is not None}
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from None


def refuse_unsupported(data: dict[str, Any], no_effect: Mapping[str, tuple[Any, ...]], prefix: str) -> None:
    """Drop unsupported parameters whose value asks for nothing; raise ``ApiError`` 400 for any other."""
    for name in [name for name in data if name in no_effect]:
        value = data.pop(name)
        if value is None or any(type(value) is type(same) and value == same for same in no_effect[name]):
            continue
        if isinstance(value, float) and value == 0 and 0 in no_effect[name]:
            continue
        raise ApiError(
            f"{prefix}{name}: {_show(value)} is not supported by this service; leave it out.",
            param=f"{prefix}{name}",
            code="unsupported_parameter",
        )


def refuse_best_of(best_of: int | None, n: int | None) -> None:
    """Raise ``ApiError`` 400 if ``best_of`` is another number than that of the answers, which are all returned."""
    if best_of not in (None, n or 1):
        raise ApiError(
            f"best_of: {best_of} is not supported by this service, which returns every answer; expected as many as n, "
            f"which is {n or 1}.",
            param="best_of",
            code="unsupported_parameter",
        )


def refuse_unsupported_in_messages(data: dict[str, Any]) -> None:
    """As ``refuse_unsupported``, for the fields of a body's messages, if it has any."""
    messages = data.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            refuse_unsupported(message, MESSAGE_NO_EFFECT, f"messages[{index}].")


def _explain(error: ValidationError) -> ApiError:
    """The first mistake, in one line."""
    errors = error.errors(include_url=False, include_context=False)
    # pydantic reports each member of a union: the client meant the one that matched deepest.
    first = max((e for e in errors if e["loc"][0] == errors[0]["loc"][0]), key=lambda e: len(e["loc"]))
    name, *rest = first["loc"]
    # Leave the names of a union's members out of the path.
    if name == "response_format":
        rest = rest[1:]
    if name == _VARIABLES:
        rest = rest[:1]
    path = [key for key in rest if isinstance(key, int) or not (key == _KEY or _UNION_MEMBER.match(key))]
    value = first["input"]
    if name == "prompt" and _is_mixed(errors[0]["input"]):
        path, value = [], errors[0]["input"]
    param = f"{name}{''.join(f'[{key}]' if isinstance(key, int) else f'.{key}' for key in path)}"[:100]
    if first["type"] == "extra_forbidden":
        return ApiError(
            f"Unrecognized request argument supplied: {param}.", param=param, code="unknown_parameter"
        )
    if first["type"] == "missing":
        return ApiError(
            f"Missing required parameter: {param}.", param=param, code="missing_required_parameter"
        )
    expected = "an object" if first["type"] in _NO_OBJECT else expected_by(first["msg"])
    if name == "prompt":  # a union of four: say all that may stand there
        expected = _PROMPT_ITEM if path else _PROMPT
    if param == "stop" and first["type"] == "string_type":
        expected = _STOP
    if param in _SCHEMAS:
        expected = _SCHEMA
    if name == _VARIABLES and path:
        expected = _VARIABLE
    return ApiError(f"{param}: expected {expected}, got {_show(value)}.", param=param)


def _is_mixed(prompt: Any) -> bool:
    """Whether a list has items of several kinds, each of which a prompt may have by itself."""
    kinds = (str, int, list)
    return (
        isinstance(prompt, list) and sum(any(isinstance(item, kind) for item in prompt) for kind in kinds) > 1
    )


def _show(value: Any) -> str:
    """The beginning of a value as JSON; of a long one, no more is written than is shown."""
    text = ""
    for piece in json.JSONEncoder().iterencode(value[:60] if isinstance(value, str | list) else value):
        text += piece
        if len(text) > 60:
            return f"{text[:59]}…"
    return text
