"""OpenAI's chat completions: reading requests strictly, writing responses. No I/O.

What is not supported is refused by name, never ignored; a value that would change nothing is accepted.
"""

import json
import re
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve.errors import ApiError
from serve.wire import ChatOrder, Finished, Mode, Progress

MAX_STOPS = 4
MAX_SEED = 2**63 - 1

#: Parameters of OpenAI's API that this service lacks, with the values that ask for nothing.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
#: The same for messages: what clients send back of an assistant's turn they received.
_MESSAGE_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}


_UNION_MEMBER = re.compile(r"(str|constrained-str|list\[.*\])$")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(_Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """Role and text, as the codec takes them."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Strict):
    """``include_usage`` asks for a last chunk that holds the usage."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class PastaOptions(_Strict):
    """This service's extension of the request."""

    mode: Literal["parallel", "sequential"] | None = Field(
        default=None, description="sequential: no promises, one token after another"
    )
    max_threads: int | None = Field(
        default=None, ge=1, le=64, description="threads of this answer, the main one included"
    )
    promise_bias: float = Field(
        default=0.0, ge=-100, le=100, description="added to the logit of opening a promise"
    )
    events: bool = Field(
        default=False, description="stream every thread's tokens as they come (needs stream)"
    )
    document: bool = Field(default=False, description="return the answer in PASTA-LANG too")


class ChatRequest(_Strict):
    """The body of POST /v1/chat/completions."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-MAX_SEED - 1, le=MAX_SEED)
    stop: Annotated[str, Field(min_length=1)] | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    pasta: PastaOptions = PastaOptions()

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def order(self, request_id: str) -> ChatOrder:
        """As the Interpreter takes it. Without a seed a random one is drawn."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return ChatOrder(
            request_id=request_id,
            model=self.model,
            messages=[message.plain() for message in self.messages],
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            temperature=self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=secrets.randbelow(MAX_SEED) if self.seed is None else self.seed,
            stop=tuple(dict.fromkeys(stop)),
            mode=self.pasta.mode,
            max_threads=self.pasta.max_threads,
            promise_bias=self.pasta.promise_bias,
            wants_events=self.pasta.events,
            wants_document=self.pasta.document,
        )


def read_chat_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises ``ApiError`` 400 that names the parameter."""
    data = _read_json(body)
    _refuse_unsupported(data, NO_EFFECT, "")
    messages = data.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            _refuse_unsupported(message, _MESSAGE_NO_EFFECT, f"messages[{index}].")
    # A null is a parameter that was not given.
    data = {key: value for key, value in data.items() if value is not None}
    try:
        request = ChatRequest.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from None
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise ApiError("max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens")
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOPS:
        raise ApiError(f"stop: {len(request.stop)} strings, expected at most {MAX_STOPS}.", param="stop")
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options is only allowed when stream is true.", param="stream_options")
    if request.pasta.events and not request.stream:
        raise ApiError("pasta.events is only allowed when stream is true.", param="pasta.events")
    return request


def _read_json(body: bytes) -> dict[str, Any]:
    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        data = json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(
            f"The body of your request is not valid JSON: {reason}.", code="invalid_json"
        ) from None
    if not isinstance(data, dict):
        raise ApiError("The body of your request is not a JSON object.", code="invalid_json")
    return data


def _refuse_unsupported(data: dict[str, Any], no_effect: Mapping[str, tuple[Any, ...]], prefix: str) -> None:
    """Drop what has no effect; raise for what would have one."""
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


def _explain(error: ValidationError) -> ApiError:
    """The first thing wrong, in one line."""
    errors = error.errors(include_url=False, include_context=False)
    # Of a union's members, the one that got furthest is the one that was meant.
    first = max((e for e in errors if e["loc"][0] == errors[0]["loc"][0]), key=lambda e: len(e["loc"]))
    name, *rest = first["loc"]
    # The names of a union's members are no part of the path.
    path = [key for key in rest if isinstance(key, int) or not _UNION_MEMBER.match(key)]
    param = f"{name}{''.join(f'[{key}]' if isinstance(key, int) else f'.{key}' for key in path)}"[:100]
    if first["type"] == "extra_forbidden":
        return ApiError(
            f"Unrecognized request argument supplied: {param}.", param=param, code="unknown_parameter"
        )
    if first["type"] == "missing":
        return ApiError(
            f"Missing required parameter: {param}.", param=param, code="missing_required_parameter"
        )
    expected = first["msg"].removeprefix("Input should be ")
    return ApiError(
        f"{param}: expected {expected}, got {_show(first['input'])}.", param=param, code="invalid_value"
    )


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# -- responses -------------------------------------------------------------------------------------------


def new_id() -> str:
    """A completion's id."""
    return f"chatcmpl-{secrets.token_hex(16)}"


class Writer:
    """Writes the response objects of one request."""

    def __init__(self, request_id: str, model: str, *, include_usage: bool = False) -> None:
        self._head = {
            "id": request_id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }
        self._include_usage = include_usage

    def completion(self, text: str, finished: Finished) -> dict[str, Any]:
        """The whole response."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finished.finish_reason,
        }
        return {
            "object": "chat.completion",
            **self._head,
            "choices": [choice],
            "usage": _usage(finished),
            "pasta": finished.pasta,
        }

    def first_chunk(self) -> dict[str, Any]:
        """The chunk that opens a stream."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def progress_chunk(self, progress: Progress) -> dict[str, Any]:
        """Text, and events if they were asked for."""
        chunk = self._chunk({"content": progress.text} if progress.text else {})
        return {**chunk, "pasta": {"events": progress.events}} if progress.events else chunk

    def last_chunks(self, finished: Finished) -> list[dict[str, Any]]:
        """The chunk with the finish reason, and the usage if it was asked for."""
        chunks = [{**self._chunk({}, finished.finish_reason), "pasta": finished.pasta}]
        if self._include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": _usage(finished)})
        return chunks

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return {"object": "chat.completion.chunk", **self._head, "choices": [choice], **usage}


def _usage(finished: Finished) -> dict[str, int]:
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }


def model_object(name: str, created: int, mode: Mode) -> dict[str, Any]:
    """An entry of GET /v1/models; whether it decodes in parallel is this service's extension."""
    head = {"id": name, "object": "model", "created": created, "owned_by": "pasta"}
    return {**head, "pasta": {"mode": mode}}


def sse(data: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


SSE_DONE = "data: [DONE]\n\n"
