"""The schemas of responses that /docs shows (those of requests are in serve/gateway/api.py, the page itself in
serve/gateway/openapi.py)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pasta.placement import Policy
from serve.wire import DecodingMode

DESCRIPTION = """OpenAI-compatible chat completions and completions, decoded in parallel.

What is not supported is refused with a 400 that names the parameter. Log-probabilities are the model's own, before
the grammar of annotations, biases, temperature and top_p; tags are no text and are not listed."""


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorDetail(_Response):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(_Response):
    """The body of every error."""

    error: ErrorDetail


class Timings(_Response):
    """Milliseconds since the request reached its decoder.

    ``sequential_estimate_ms`` estimates the time of the same text one token after another (without the queue): the
    time to the first token, and for each further token one step with a single lane, measured when the idle decoder
    started. ``sync_wait_ms`` is how long the main thread waited for its chunks.
    """

    queue_ms: float
    ttft_ms: float
    total_ms: float
    sequential_estimate_ms: float | None
    sync_wait_ms: float


class DecodingStatistics(BaseModel):
    """The extension object of an answer: how it was decoded.

    ``theoretical_speedup`` is sequential_tokens over critical_path; ``speedup`` is sequential_estimate_ms over the
    time that the answer took without the queue (null if a decoder was lost before it reported its times).
    """

    model_config = ConfigDict(extra="allow", strict=True)

    mode: DecodingMode
    threads: int
    steps: int
    critical_path: int
    tokens: int
    sequential_tokens: int
    theoretical_speedup: float
    speedup: float | None
    timings: Timings
    placement: Policy
    spills: int
    returns: int
    redispatches: int
    document: str | None = None
    trace: dict[str, Any] | None = None


class PromptTokensDetails(_Response):
    """Tokens of the prompts that were not computed again, since an earlier request began alike."""

    cached_tokens: int


class Usage(_Response):
    """Token counts; completion_tokens counts tags too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatToken(_Response):
    """A token with its log-probability; ``bytes`` is null for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenTop(ChatToken):
    """A token of the text, and the likeliest tokens at its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(_Response):
    """The tokens of an answer's text."""

    content: list[ChatTokenTop]
    refusal: None


class AssistantMessage(_Response):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[Any]


class _Choice(_Response):
    index: int
    finish_reason: Literal["stop", "length", "repetition"]
    pasta: DecodingStatistics | None = None


class ChatChoice(_Choice):
    """One answer to a conversation."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None


class CompletionLogprobs(_Response):
    """The tokens of an answer's text, each list of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Choice):
    """One continuation of a text."""

    text: str
    logprobs: CompletionLogprobs | None


class _Whole(_Response):
    id: str
    created: int
    model: str
    system_fingerprint: None
    usage: Usage
    pasta: DecodingStatistics | None = None


class ChatCompletion(_Whole):
    """The response of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Whole):
    """The response of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelOptions(_Response):
    """The extension object of a model: whether it decodes in parallel, its number format, and how many processes share
    it.

    ``dtype`` is ``auto`` until a decoder has chosen one, ``dtype_why`` the reason for its choice. Decoders on unlike
    machines may have chosen several, which are all named.
    """

    mode: DecodingMode
    dtype: str
    dtype_why: str
    tensor_parallel: int


class Model(_Response):
    """A served model; ``max_model_len`` bounds the tokens of a prompt and its answer together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    pasta: ModelOptions


class ModelList(_Response):
    """The served models."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(_Response):
    """The token ids of a text or a conversation; ``token_strs`` if they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(_Response):
    """The text of token ids."""

    prompt: str


class Health(_Response):
    """The service is alive."""

    status: Literal["ok"]


class GatewayState(_Response):
    """The Gateway that answers: its process, and how long its event loop was blocked in the last ten seconds, at most.

    ``late_ms`` is how late a timer fired; ``busy_ms`` is how much of that the loop's own thread was computing. Both in
    milliseconds.
    """

    pid: int
    late_ms: float
    busy_ms: float


class Ready(_Response):
    """Requests are taken. ``decoders`` are those that answer."""

    status: Literal["ready"]
    models: list[str]
    gateway: GatewayState
    decoders: list[dict[str, Any]]


_ERROR = {"model": Error, "description": "OpenAI's error object"}
_UNAVAILABLE = {"model": Error, "description": "Send the request again"}

#: Describes one event of a stream, as OpenAPI before 3.2 does.
_EVENT = {
    "type": "object",
    "description": "A chunk of the answer as JSON, or [DONE] at its end.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}


def _responses(model: type[BaseModel], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    answer: dict[str, Any] = {"model": model, "description": (model.__doc__ or "").split("\n")[0]}
    if streams:
        answer["content"] = {"text/event-stream": {"schema": _EVENT}}
    return {200: answer, "4XX": _ERROR, 503: _UNAVAILABLE}


HEALTH: dict[int | str, dict[str, Any]] = {200: {"model": Health, "description": "Alive"}}
READY: dict[int | str, dict[str, Any]] = {200: {"model": Ready, "description": "Ready"}, 503: _UNAVAILABLE}
MODELS = _responses(ModelList)
MODEL = _responses(Model)
CHAT = _responses(ChatCompletion, streams=True)
TOKENIZED = _responses(Tokenized)
DETOKENIZED = _responses(Detokenized)
COMPLETION = _responses(Completion, streams=True)
