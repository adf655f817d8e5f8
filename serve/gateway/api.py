"""Reads requests for OpenAI's chat completions and completions, strictly. No I/O.

A parameter that this service lacks is refused by name, never ignored, unless its value asks for nothing.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from pasta.engine import SamplingParams
from pasta.engine.request import MAX_LOGIT_BIAS
from pasta.interpreter import RepetitionDetection
from serve.errors import ApiError
from serve.gateway.body import read_object
from serve.gateway.openapi import NULL, described, only_with
from serve.gateway.options import PastaOptions, RepetitionOptions, StreamOptions, Strict, TemplateOptions
from serve.gateway.reading import (
    CHAT_NO_EFFECT,
    COMPLETION_NO_EFFECT,
    MESSAGE_NO_EFFECT,
    refuse_best_of,
    refuse_unsupported,
    refuse_unsupported_in_messages,
    validated,
)
from serve.gateway.structure import RULE, Structured
from serve.wire import Order, PromptInput

MAX_STOPS = 4
MAX_STOP_TOKENS = 64
MAX_SEED = 2**63 - 1

MAX_N = 8
#: The most prompts in one request; each is answered n times.
MAX_PROMPTS = 32
_MOST_PROMPTS: dict[str, Any] = {"maxItems": MAX_PROMPTS}
#: OpenAI's default of max_tokens for completions.
DEFAULT_COMPLETION_TOKENS = 16

#: Bounded, since a number of many digits takes as long to check as a hundred others.
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
#: Validation of a list stops at its first mistake: reporting every one costs a thousand times as much.
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
#: Token ids, as JSON's keys, with what is added to their logits.
LogitBias = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[0-9]{1,9}$")],
        Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)],
    ],
    Field(json_schema_extra={"additionalProperties": False}),
]
#: Descriptions, for the OpenAPI page, of the parameters that chat completions and completions share.
_RULES = (
    RULE,
    only_with(
        "stream",
        stream_options=NULL,
        pasta={"properties": {"events": {"enum": [False, None]}}},
    ),
)


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of the conversation. An assistant's without content, or with null, is an empty text, as in vLLM."""

    model_config = ConfigDict(
        json_schema_extra=described(
            {
                "anyOf": [
                    {"properties": {"role": {"const": "assistant"}}},
                    {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]},
                ]
            },
            no_effect=MESSAGE_NO_EFFECT,
        )
    )

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = Field(
        default=None, validate_default=True
    )
    name: str | None = None

    @field_validator("content")
    @classmethod
    def _given(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") != "assistant":
            raise PydanticKnownError("missing")
        return content

    def plain(self) -> dict[str, str]:
        """Role and text, as the codec takes them."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class _Generation(Structured):
    """The parameters that chat completions and completions share."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, description="0 and -1 are off")
    min_p: float | None = Field(default=None, ge=0, le=1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    logit_bias: LogitBias | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_N, description="answers to each prompt")
    best_of: int | None = Field(default=None, ge=1, le=MAX_N, description="the same as n")
    seed: int | None = Field(default=None, ge=-MAX_SEED - 1, le=MAX_SEED)
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(fail_fast=True, json_schema_extra={"maxItems": MAX_STOPS}),
        ]
        | None
    ) = None
    stop_token_ids: (
        Annotated[
            list[TokenId],
            Field(fail_fast=True, json_schema_extra={"maxItems": MAX_STOP_TOKENS}),
        ]
        | None
    ) = None
    min_tokens: int | None = Field(default=None, ge=0, description="text tokens before the answer may end")
    ignore_eos: bool | None = None
    repetition_detection: RepetitionOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    prompt_cache_key: str | None = Field(default=None, description="has no effect")
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    pasta: PastaOptions = PastaOptions()

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of the stream says how many tokens its answer has so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_choices(self) -> int:
        """The number of answers requested."""
        return self.n or 1

    def _sampling(self) -> SamplingParams:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=secrets.randbelow(MAX_SEED) if self.seed is None else self.seed,
            stop=tuple(dict.fromkeys(stop)),
            stop_token_ids=tuple(dict.fromkeys(self.stop_token_ids or ())),
            promise_bias=self.pasta.promise_bias,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            # "5" and "05" are one token: the last one counts, as of a key that an object has twice.
            logit_bias=tuple({int(token): bias for token, bias in (self.logit_bias or {}).items()}.items()),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
        )

    def repetition(self) -> RepetitionDetection | None:
        """When a thread repeats itself, if the request says so. Raises ``ApiError`` 400 that names the parameter."""
        return None if self.repetition_detection is None else self.repetition_detection.detection()

    def _order(
        self, request_id: str, prompts: list[PromptInput], max_tokens: int | None, logprobs: int | None
    ) -> Order:
        return Order(
            request_id=request_id,
            model=self.model,
            prompts=prompts,
            n=self.n or 1,
            logprobs=logprobs,
            max_tokens=max_tokens,
            temperature=self.temperature,
            sampling=self._sampling(),
            grammar=self.grammar(),
            mode=self.pasta.mode,
            max_threads=self.pasta.max_threads,
            drafts=self.pasta.drafts,
            wants_events=self.pasta.events,
            wants_document=self.pasta.document,
            wants_trace=self.pasta.trace,
            placement=self.pasta.placement,
            repetition_detection=self.repetition(),
        )


class ChatRequest(_Generation):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(
        json_schema_extra=described(
            *_RULES,
            only_with("logprobs", top_logprobs={"enum": [0, None]}),
            no_effect=CHAT_NO_EFFECT,
        )
    )

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    chat_template_kwargs: TemplateOptions | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = Field(
        default=None, description="report each text token's log-probability under the model itself"
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def most_tokens(self) -> int | None:
        """The bound on the answer's tokens, if it has one of its own."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def order(self, request_id: str) -> Order:
        """The order for the Interpreter. Without a seed a random one is drawn."""
        messages = [message.plain() for message in self.messages]
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        order = self._order(request_id, [messages], self.most_tokens, logprobs)
        return dataclasses.replace(order, template_options=self.chat_template_kwargs or {})


class CompletionRequest(_Generation):
    """The body of POST /v1/completions: texts, or the token ids of texts, to be continued."""

    model_config = ConfigDict(
        json_schema_extra=described(
            *_RULES,
            only_with("echo", max_tokens={"anyOf": [{"type": "integer", "minimum": 1}, NULL]}),
            {
                "anyOf": [{"properties": {name: {"enum": [False, None]}}} for name in ("echo", "stream")]
                + [{"properties": {"logprobs": NULL}}]
            },
            no_effect=COMPLETION_NO_EFFECT,
        )
    )

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, fail_fast=True, json_schema_extra=_MOST_PROMPTS)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True, json_schema_extra=_MOST_PROMPTS)]
    )
    logprobs: int | None = Field(default=None, ge=0, le=5)
    max_tokens: int | None = Field(default=None, ge=0, description="0: only with echo")
    echo: bool | None = Field(
        default=None, description="begin with the prompt, and with logprobs report its tokens' too"
    )

    @property
    def prompts(self) -> list[PromptInput]:
        """The prompts, one or more."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[PromptInput]", self.prompt)

    @property
    def num_choices(self) -> int:
        """The number of answers requested."""
        return len(self.prompts) * (self.n or 1)

    @property
    def most_tokens(self) -> int:
        """The bound on an answer's tokens."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def order(self, request_id: str) -> Order:
        """The order for the Interpreter. Without a seed a random one is drawn."""
        order = self._order(request_id, self.prompts, self.most_tokens, self.logprobs)
        return dataclasses.replace(order, echo=bool(self.echo))


def read_chat_request(body: bytes) -> ChatRequest:
    """Parse and check a request's body. Raises ``ApiError`` 400 that names the parameter."""
    data = read_object(body)
    refuse_unsupported_in_messages(data)
    request = _read(data, ChatRequest, CHAT_NO_EFFECT)
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise ApiError("max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise ApiError("top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
    _check_min_tokens(request, request.most_tokens)
    return request


def read_completion_request(body: bytes) -> CompletionRequest:
    """Parse and check a request's body. Raises ``ApiError`` 400 that names the parameter."""
    request = _read(read_object(body), CompletionRequest, COMPLETION_NO_EFFECT)
    if len(request.prompts) > MAX_PROMPTS:
        raise ApiError(
            f"prompt: {len(request.prompts)} prompts, expected at most {MAX_PROMPTS}.", param="prompt"
        )
    if request.max_tokens == 0 and not request.echo:
        raise ApiError("max_tokens: expected at least 1; 0 is only allowed with echo.", param="max_tokens")
    if request.echo and request.stream and request.logprobs is not None:
        raise ApiError(
            "stream: it does not go with echo and logprobs; leave out one of them.", param="stream"
        )
    _check_min_tokens(request, request.most_tokens)
    return request


def _check_min_tokens(request: _Generation, most: int | None) -> None:
    if most is not None and (request.min_tokens or 0) > most:
        raise ApiError(
            f"min_tokens: {request.min_tokens}, expected at most max_tokens, which is {most}.",
            param="min_tokens",
        )


G = TypeVar("G", bound=_Generation)


def _read(data: dict[str, Any], kind: type[G], no_effect: Mapping[str, tuple[Any, ...]]) -> G:
    refuse_unsupported(data, no_effect, "")
    request = validated(data, kind)
    refuse_best_of(request.best_of, request.n)
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOPS:
        raise ApiError(f"stop: {len(request.stop)} strings, expected at most {MAX_STOPS}.", param="stop")
    if len(request.stop_token_ids or ()) > MAX_STOP_TOKENS:
        raise ApiError(
            f"stop_token_ids: {len(request.stop_token_ids or ())} ids, expected at most {MAX_STOP_TOKENS}.",
            param="stop_token_ids",
        )
    request.repetition()
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options is only allowed when stream is true.", param="stream_options")
    if (grammar := request.grammar()) is not None:
        for name in ("min_tokens", "ignore_eos"):
            if getattr(request, name):
                raise ApiError(
                    f"{name}: it does not go with {grammar.param}, which says where to end.", param=name
                )
    if request.pasta.events and not request.stream:
        raise ApiError("pasta.events is only allowed when stream is true.", param="pasta.events")
    return request
