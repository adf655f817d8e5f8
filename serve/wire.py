"""What the deployments send each other. Plain data: no torch, no Ray, nothing of HTTP."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal

from pasta.interpreter import Limits, Snapshot
from pasta.placement import Policy

Mode = Literal["parallel", "sequential"]
#: A thread's name in its response's tree: () is the main thread, (2, 0) the first child of its third child.
Path = tuple[int, ...]


#: The messages of a conversation, a text to be continued, or the token ids of one.
Prompt = list[dict[str, str]] | str | list[int]


@dataclass(frozen=True, slots=True)
class Order:
    """Gateway → Interpreter: a validated request for ``n`` answers to each of its prompts.

    ``logprobs`` is the number of likeliest tokens to report beside each token of the text, ``None`` for no
    log-probabilities at all. ``http_request_id`` is what logs call the request (serve/observe/logs.py).
    """

    request_id: str
    model: str
    prompts: list[Prompt]
    n: int
    logprobs: int | None
    max_tokens: int | None
    temperature: float | None
    top_p: float
    seed: int
    stop: tuple[str, ...]
    mode: Mode | None
    max_threads: int | None
    promise_bias: float
    wants_events: bool
    wants_document: bool
    placement: Policy | None = None
    wants_trace: bool = False
    http_request_id: str = ""

    @property
    def num_choices(self) -> int:
        """Answers to all prompts together."""
        return self.n * len(self.prompts)


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """Interpreter → Decoder: one response to decode, or a chunk of one (``snapshot``) that lives elsewhere.

    ``request_id`` names this attempt. ``tokens`` is what has been decoded of it before, and ``lent`` the chunks
    below it that other Decoders still hold.
    """

    request_id: str
    model: str
    prompt_ids: list[int]
    limits: Limits
    parallel: bool
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    promise_bias: float
    logprobs: int | None = None
    placement: Policy = "local"
    snapshot: Snapshot | None = None
    tokens: tuple[tuple[Path, int], ...] = ()
    lent: dict[Path, Limits] = field(default_factory=dict)
    http_request_id: str = ""


#: Of a chosen token, and of the likeliest ids with theirs.
TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]
#: Decoder → Interpreter: (thread, token id, seconds since submission). All else follows from the tokens.
#: The fourth part is there if the order asked for log-probabilities.
TokenItem = tuple[Path, int, float] | tuple[Path, int, float, TokenLogprobs]


@dataclass(frozen=True, slots=True)
class Lent:
    """Decoder → Interpreter, after the token that forked it: chunk ``path`` is to be decoded within ``limits``
    wherever the Interpreter finds best, and to be brought back."""

    path: Path
    limits: Limits


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoder → Interpreter, last: how the response ended. Times in seconds since submission.

    ``steps`` counts the engine's forwards from the first token to the last; ``step_s`` is what one with a single lane
    takes on that Decoder when it has nothing else to do (0: not known). The finish reason of a chunk that needs more
    than it was lent is short.
    """

    finish_reason: str
    steps: int
    queue_s: float
    ttft_s: float
    total_s: float
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """Interpreter → Gateway, first: the request is under way."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of the text: as it reads, its log-probability, the likeliest others, and where it begins."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Interpreter → Gateway: text of choice ``index`` that may be shown now, in reading order, and what else was
    asked for: events, log-probabilities of the text's tokens."""

    text: str
    events: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TextToken] = field(default_factory=list)
    index: int = 0

    def __bool__(self) -> bool:
        return bool(self.text or self.events or self.logprobs)


@dataclass(frozen=True, slots=True)
class Finished:
    """Interpreter → Gateway, last of choice ``index``: counts and figures; ``pasta`` is the extension object."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    pasta: dict[str, Any]
    index: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Decoder → Interpreter or Interpreter → Gateway, first and last: the request cannot be served."""

    message: str
    status: int = 400
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    #: Another Interpreter takes it: the Gateway asks once more.
    elsewhere: bool = False
    #: So is every request for as many answers of as many tokens, until another request ends.
    no_room: bool = False


#: What a Decoder's stream brings, one message for all that comes at once: each costs the whole way as much as a token.
Decoding = list[TokenItem] | Lent | Decoded | Refused
#: What an Interpreter's stream brings, in lists too.
Update = Accepted | Progress | Finished | Refused
Batches = AsyncGenerator[list[Update], None]
