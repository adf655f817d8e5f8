"""What the deployments send each other. Plain data: no torch, no Ray, nothing of HTTP."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pasta.interpreter import Limits, Snapshot

Mode = Literal["parallel", "sequential"]
Policy = Literal["local", "spread", "auto"]
#: A thread's name in its response's tree: () is the main thread, (2, 0) the first child of its third child.
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatOrder:
    """Gateway → Interpreter: a validated chat request."""

    request_id: str
    model: str
    messages: list[dict[str, str]]
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
    placement: Policy = "local"
    snapshot: Snapshot | None = None
    tokens: tuple[tuple[Path, int], ...] = ()
    lent: dict[Path, Limits] = field(default_factory=dict)


#: Decoder → Interpreter: (thread, token id, seconds since submission). All else follows from the tokens.
TokenItem = tuple[Path, int, float]


@dataclass(frozen=True, slots=True)
class Lent:
    """Decoder → Interpreter, after the token that forked it: chunk ``path`` is to be decoded within ``limits``
    wherever the Interpreter finds best, and to be brought back."""

    path: Path
    limits: Limits


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoder → Interpreter, last: how the response ended. Times in seconds since submission.

    ``steps`` counts the engine's forwards from the first token to the last.
    """

    finish_reason: str
    steps: int
    queue_s: float
    ttft_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """Interpreter → Gateway, first: the request is under way."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Interpreter → Gateway: text that may be shown now, in reading order, and events if asked for."""

    text: str
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finished:
    """Interpreter → Gateway, last: counts and figures; ``pasta`` is the extension object of the answer."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    pasta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """Decoder → Interpreter or Interpreter → Gateway, first and last: the request cannot be served."""

    message: str
    status: int = 400
    param: str | None = None
    code: str | None = None


Update = Accepted | Progress | Finished | Refused
