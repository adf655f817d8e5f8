"""Writes OpenAI's response objects, whole and in chunks. No I/O."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from serve.wire import Accepted, DecodingMode, Delta, Finished, TextToken, Update

#: Lower log-probabilities are written as this value, as OpenAI does: JSON has no infinities.
_LEAST = -9999.0
SSE_DONE = "data: [DONE]\n\n"
#: Tokens that are written at a time: with their 20 likeliest each, some 3 ms.
_SLICE = 32
_Columns = Mapping[str, Iterator[Any] | None]


@dataclass(slots=True)
class Choice:
    """One answer while it is collected."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TextToken] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class TokenCounts:
    """The tokens of a request: of its prompts, of those the ones that were cached, and of all its answers."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def count(self, update: Update) -> None:
        """Add what an update tells of them."""
        if isinstance(update, Accepted):
            self.prompt_tokens = update.prompt_tokens
        elif isinstance(update, Finished):
            self.cached_tokens += update.cached_tokens
            self.completion_tokens += update.completion_tokens

    def written(self) -> dict[str, Any]:
        """The usage object of a response."""
        return {
            **self.so_far(self.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def so_far(self, completion_tokens: int) -> dict[str, int]:
        """The usage object of a chunk whose answer has so many tokens; what was cached is known at the end only."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }


class Writer:
    """Writes the response objects of one request; subclasses write the choices of one endpoint.

    With one choice the extension object ``pasta`` stands beside ``choices``; with several each choice has its own. In
    a stream every chunk is of one choice, and ``pasta`` stands beside ``choices``.
    """

    id_prefix: str
    kind: str
    chunk_kind: str

    def __init__(
        self,
        model: str,
        num_choices: int,
        *,
        logprobs: bool = False,
        include_usage: bool = False,
        continuous_usage: bool = False,
    ) -> None:
        self.request_id = f"{self.id_prefix}-{secrets.token_hex(16)}"
        self.num_choices = num_choices
        #: Counts every update that comes.
        self.usage = TokenCounts()
        self._logprobs = logprobs
        self._include_usage, self._continuous_usage = include_usage, continuous_usage
        self._head = {
            "id": self.request_id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """The JSON of the response object of finished choices, in pieces: each takes a few milliseconds to make."""
        yield _json({"object": self.kind, **self._head})[:-1] + ',"choices":['
        for index, choice in enumerate(choices):
            assert choice.finished is not None
            begun = _json({"index": index, **self._content("".join(choice.text))})[:-1]
            yield ("," if index else "") + begun + ',"logprobs":'
            yield from _pieces(self._columns(choice.logprobs)) if self._logprobs else ("null",)
            several = {"pasta": choice.finished.pasta} if len(choices) > 1 else {}
            yield "," + _json({"finish_reason": choice.finished.finish_reason, **several})[1:]
        beside = {"pasta": choices[0].finished.pasta} if len(choices) == 1 and choices[0].finished else {}
        yield "]," + _json({"usage": self.usage.written(), **beside})[1:]

    def first_chunks(self) -> list[dict[str, Any]]:
        """The chunks that open a stream."""
        return []

    def delta_chunk(self, delta: Delta) -> dict[str, Any]:
        """A chunk of text, with the events and log-probabilities that the request asked for."""
        content = self._delta(delta.text)
        chunk = self._chunk(delta.index, content, delta.logprobs, completion_tokens=delta.completion_tokens)
        return {**chunk, "pasta": {"events": delta.events}} if delta.events else chunk

    def finish_chunk(self, finished: Finished) -> dict[str, Any]:
        """The last chunk of a choice."""
        chunk = self._chunk(
            finished.index, self._delta(""), [], finished.finish_reason, finished.completion_tokens
        )
        return {**chunk, "pasta": finished.pasta}

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if the request asked for it."""
        if not self._include_usage:
            return []
        return [{"object": self.chunk_kind, **self._head, "choices": [], "usage": self.usage.written()}]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TextToken],
        finish_reason: str | None = None,
        completion_tokens: int = 0,
    ) -> dict[str, Any]:
        tokens = self._tokens(logprobs) if logprobs else None
        choice = {"index": index, **delta, "logprobs": tokens, "finish_reason": finish_reason}
        chunk = {"object": self.chunk_kind, **self._head, "choices": [choice]}
        if self._continuous_usage:
            return {**chunk, "usage": self.usage.so_far(completion_tokens)}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _tokens(self, tokens: Sequence[TextToken]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {name: values and list(values) for name, values in self._columns(tokens).items()}

    def _content(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _columns(self, tokens: Sequence[TextToken]) -> _Columns:
        """The members of the log-probabilities' object, each a list that is made as it is read, or null."""
        raise NotImplementedError


class ChatWriter(Writer):
    """Responses of /v1/chat/completions."""

    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunks(self) -> list[dict[str, Any]]:
        """A chunk with the role for each choice."""
        delta = {"delta": {"role": "assistant", "content": "", "refusal": None}}
        return [self._chunk(index, delta, []) for index in range(self.num_choices)]

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _columns(self, tokens: Sequence[TextToken]) -> _Columns:
        content = (
            {
                **_chat_token(token.token, token.logprob),
                "top_logprobs": [_chat_token(text, value) for text, value in token.top],
            }
            for token in tokens
        )
        return {"content": content, "refusal": None}


class CompletionWriter(Writer):
    """Responses of /v1/completions."""

    id_prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _columns(self, tokens: Sequence[TextToken]) -> _Columns:
        return {
            "tokens": (token.token for token in tokens),
            "token_logprobs": (None if token.logprob is None else _shown(token.logprob) for token in tokens),
            "top_logprobs": (None if token.logprob is None else _top_by_text(token) for token in tokens),
            "text_offset": (token.offset for token in tokens),
        }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _pieces(columns: _Columns) -> Iterator[str]:
    """The JSON of an object of long lists, in pieces."""
    for number, (name, values) in enumerate(columns.items()):
        yield ("," if number else "{") + _json(name) + ":"
        if values is None:
            yield "null"
            continue
        before = "["
        while some := list(islice(values, _SLICE)):
            yield before + _json(some)[1:-1]
            before = ","
        yield "[]" if before == "[" else "]"
    yield "}"


def _top_by_text(token: TextToken) -> dict[str, float]:
    """The chosen token and the likeliest others. Of several tokens with one text, such as halves of characters, the
    chosen one is shown, or else the likeliest."""
    shown = {token.token: _shown(token.logprob)}
    for text, logprob in token.top:
        shown.setdefault(text, _shown(logprob))
    return shown


def _chat_token(text: str, logprob: float | None) -> dict[str, Any]:
    # A token that is a part of a character has no text of its own; its bytes are not known here.
    whole = list(text.encode()) if "\ufffd" not in text else None
    return {"token": text, "logprob": _shown(logprob), "bytes": whole}


def _shown(logprob: float | None) -> float:
    assert logprob is not None, "only the first token of a prompt has none"
    return round(max(logprob, _LEAST), 6)


def model_object(
    name: str,
    created: int,
    context: int,
    mode: DecodingMode,
    dtype: str,
    dtype_why: str,
    tensor_parallel: int,
) -> dict[str, Any]:
    """An entry of GET /v1/models; ``max_model_len`` is vLLM's, ``pasta`` this service's extension."""
    head = {"id": name, "object": "model", "created": created, "owned_by": "pasta", "max_model_len": context}
    options = {"mode": mode, "dtype": dtype, "dtype_why": dtype_why, "tensor_parallel": tensor_parallel}
    return {**head, "pasta": options}


def sse(data: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
