"""OpenAI's response objects: whole, and in chunks. No I/O."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.wire import Finished, Mode, Progress, TextToken

#: The least value that is shown: JSON has no infinities.
_LEAST = -9999.0
SSE_DONE = "data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TextToken] = field(default_factory=list)
    finished: Finished | None = None


class Writer:
    """Writes the response objects of one request; its subclasses know what a choice looks like.

    With one choice ``pasta``, the figures of the answer, stands beside ``choices``; with several each choice has
    its own. In a stream every chunk is of one choice, and ``pasta`` stands beside it.
    """

    id_prefix: str
    kind: str
    chunk_kind: str

    def __init__(
        self, model: str, num_choices: int, *, logprobs: bool = False, include_usage: bool = False
    ) -> None:
        self.request_id = f"{self.id_prefix}-{secrets.token_hex(16)}"
        self.num_choices = num_choices
        self._logprobs, self._include_usage = logprobs, include_usage
        self._head = {
            "id": self.request_id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": None,
        }

    def whole(self, choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
        """The whole response."""
        written, figures = [], []
        for index, choice in enumerate(choices):
            assert choice.finished is not None
            tokens = self._tokens(choice.logprobs)
            written.append(
                {
                    "index": index,
                    **self._content("".join(choice.text)),
                    "logprobs": tokens,
                    "finish_reason": choice.finished.finish_reason,
                }
            )
            figures.append(choice.finished)
        if len(written) > 1:
            for one, finished in zip(written, figures, strict=True):
                one["pasta"] = finished.pasta
        beside = {"pasta": figures[0].pasta} if len(written) == 1 else {}
        usage = _usage(prompt_tokens, sum(finished.completion_tokens for finished in figures))
        return {"object": self.kind, **self._head, "choices": written, "usage": usage, **beside}

    def first_chunks(self) -> list[dict[str, Any]]:
        """What opens a stream."""
        return []

    def progress_chunk(self, progress: Progress) -> dict[str, Any]:
        """Text, and events and log-probabilities if they were asked for."""
        chunk = self._chunk(progress.index, self._delta(progress.text), progress.logprobs)
        return {**chunk, "pasta": {"events": progress.events}} if progress.events else chunk

    def finish_chunk(self, finished: Finished) -> dict[str, Any]:
        """The end of a choice."""
        chunk = self._chunk(finished.index, self._delta(""), [], finished.finish_reason)
        return {**chunk, "pasta": finished.pasta}

    def last_chunks(self, prompt_tokens: int, completion_tokens: int) -> list[dict[str, Any]]:
        """The usage, if it was asked for."""
        if not self._include_usage:
            return []
        usage = _usage(prompt_tokens, completion_tokens)
        return [{"object": self.chunk_kind, **self._head, "choices": [], "usage": usage}]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TextToken],
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        tokens = self._tokens(logprobs) if logprobs else None
        choice = {"index": index, **delta, "logprobs": tokens, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return {"object": self.chunk_kind, **self._head, "choices": [choice], **usage}

    def _tokens(self, tokens: Sequence[TextToken]) -> dict[str, Any] | None:
        return self._listed(tokens) if self._logprobs else None

    def _content(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _listed(self, tokens: Sequence[TextToken]) -> dict[str, Any]:
        raise NotImplementedError


class ChatWriter(Writer):
    """Responses of /v1/chat/completions."""

    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunks(self) -> list[dict[str, Any]]:
        """The role of each choice."""
        delta = {"delta": {"role": "assistant", "content": "", "refusal": None}}
        return [self._chunk(index, delta, []) for index in range(self.num_choices)]

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _listed(self, tokens: Sequence[TextToken]) -> dict[str, Any]:
        content = [
            {
                **_chat_token(token.token, token.logprob),
                "top_logprobs": [_chat_token(text, value) for text, value in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionWriter(Writer):
    """Responses of /v1/completions."""

    id_prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _listed(self, tokens: Sequence[TextToken]) -> dict[str, Any]:
        # The chosen token is always among those shown.
        tops = [{t.token: _shown(t.logprob)} | {text: _shown(value) for text, value in t.top} for t in tokens]
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [_shown(token.logprob) for token in tokens],
            "top_logprobs": tops,
            "text_offset": [token.offset for token in tokens],
        }


def _chat_token(text: str, logprob: float) -> dict[str, Any]:
    # A token that is a part of a character has no text of its own, and its bytes are not known here.
    whole = list(text.encode()) if "\ufffd" not in text else None
    return {"token": text, "logprob": _shown(logprob), "bytes": whole}


def _shown(logprob: float) -> float:
    return round(max(logprob, _LEAST), 6)


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def model_object(name: str, created: int, mode: Mode) -> dict[str, Any]:
    """An entry of GET /v1/models; whether it decodes in parallel is this service's extension."""
    head = {"id": name, "object": "model", "created": created, "owned_by": "pasta"}
    return {**head, "pasta": {"mode": mode}}


def sse(data: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
