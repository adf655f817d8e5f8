"""The engine's inputs and outputs: configuration, requests, events, results."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING

from pasta.bounds import check_switches
from pasta.errors import UserError
from pasta.interpreter import Limits, Path, Snapshot, Trace
from pasta.lang import Document
from pasta.messages import message
from pasta.rows import short_repr
from pasta.sizes import EngineSettings

if TYPE_CHECKING:
    from pasta.engine.structure import Structure

#: OpenAI's bound of a bias.
MAX_LOGIT_BIAS = 100.0
#: OpenAI's bounds of its two penalties. The repetition penalty's bounds keep logits from overflowing.
_PENALTIES = (
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 100.0),
)


@message
class SamplingParams:
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off.

    ``min_p`` keeps tokens of at least that probability times the likeliest one's. ``stop`` strings (after
    ``min_tokens``) and ``stop_token_ids`` end the answer, in reading order, and are not part of it. ``promise_bias`` is
    added to the logit of opening a promise, 10,000 of it at most.

    The rest acts on a thread's text, not inside its tags (pasta/engine/penalties.py): ``logit_bias`` are ids with what
    is added to their logits; the penalties are vLLM's, over the text that the thread sees. Until a thread sees
    ``min_tokens`` tokens of the answer's text, or with ``ignore_eos`` for ever, it chooses no end of the answer unless
    a limit or the answer's grammar leaves nothing else. Raises ``UserError`` naming the value that is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    promise_bias: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise UserError(f"temperature: {self.temperature!r}, expected a number from 0 to 100")
        if not (_is_integer(self.top_k) and self.top_k >= 0):
            raise UserError(f"top_k: {self.top_k!r}, expected 0 (off) or a positive integer")
        if not (_is_number(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise UserError(f"top_p: {self.top_p!r}, expected a number above 0 and at most 1")
        if not (_is_number(self.min_p) and 0.0 <= self.min_p <= 1.0):
            raise UserError(f"min_p: {self.min_p!r}, expected a number from 0 to 1")
        for name, least, most in _PENALTIES:
            if not (_is_number(value := getattr(self, name)) and least <= value <= most):
                raise UserError(f"{name}: {value!r}, expected a number from {least:g} to {most:g}")
        if not (_is_integer(self.min_tokens) and self.min_tokens >= 0):
            raise UserError(f"min_tokens: {self.min_tokens!r}, expected an integer of at least 0")
        if not _is_tuple_of(_is_token, self.stop_token_ids):
            raise UserError(
                f"stop_token_ids: {short_repr(self.stop_token_ids)}, expected a tuple of token ids"
            )
        if not _is_tuple_of(_is_biased_token, self.logit_bias):
            raise UserError(
                f"logit_bias: {short_repr(self.logit_bias)}, expected a tuple of pairs of a token id and a number"
            )
        if not all(abs(bias) <= MAX_LOGIT_BIAS for _, bias in self.logit_bias):
            raise UserError(f"logit_bias: expected values from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}")
        if not _is_integer(self.seed):
            raise UserError(f"seed: {self.seed!r}, expected an integer")
        if not (_is_number(self.promise_bias) and abs(self.promise_bias) <= sys.float_info.max):
            raise UserError(f"promise_bias: {self.promise_bias!r}, expected a finite number")
        if not _is_tuple_of(lambda stop: isinstance(stop, str), self.stop):
            raise UserError(f"stop: {short_repr(self.stop)}, expected a tuple of strings")
        if not all(self.stop):
            raise UserError("stop: an empty string, expected strings of at least one character")
        if not isinstance(self.ignore_eos, bool):
            raise UserError(f"ignore_eos: {self.ignore_eos!r}, expected true or false")

    @property
    def stops(self) -> bool:
        """Whether something that the answer says may end it."""
        return bool(self.stop or self.stop_token_ids)

    @property
    def penalises(self) -> bool:
        """Whether a logit depends on the text so far."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def cuts(self) -> bool:
        """Whether which tokens may be drawn depends on how likely others are."""
        return self.temperature > 0 and bool(self.top_k or self.top_p < 1.0 or self.min_p)

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed in text."""
        return bool(self.penalises or self.logit_bias or self.min_tokens or self.ignore_eos)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_token(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _is_biased_token(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_token(value[0]) and _is_number(value[1])


def _is_tuple_of(check: Callable[[object], bool], values: object) -> bool:
    return isinstance(values, tuple) and all(check(value) for value in values)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The model's own log-probabilities of a token: before the grammar's mask, biases, temperature and top-p.

    ``chosen`` is the log-probability of the token that was chosen, ``top`` the likeliest tokens with theirs.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig(EngineSettings):
    """An engine's settings, and ``trace_forward``: record the model's forward once and replay it without Python (on a
    CPU small models are bound by per-op overhead); ``None`` decides by the model's size.
    """

    trace_forward: bool | None = None

    def __post_init__(self) -> None:
        EngineSettings.__post_init__(self)
        if self.trace_forward is not None:
            check_switches(self, "trace_forward")

    @classmethod
    def of(cls, settings: EngineSettings) -> "EngineConfig":
        """The configuration of an engine with these settings."""
        return cls(
            **{field.name: getattr(settings, field.name) for field in dataclasses.fields(EngineSettings)}
        )


@dataclass(frozen=True, slots=True)
class ThreadProgress:
    """The tokens of an answer or chunk that were decoded elsewhere, in the order in which they were decoded.

    ``lent`` names the chunks in it that other engines still decode, with their limits: their tokens are missing
    here and will be absorbed.
    """

    tokens: Sequence[tuple[Path, int]] = ()
    lent: Mapping[Path, Limits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to decode. ``prompt_ids`` is the prompt, or ``snapshot`` a chunk of an answer elsewhere.

    ``parallel`` false masks promises out. ``forced`` is a response in storage order to replay (its tokens are fed, and
    the model's choice is ignored). ``place_locally`` decides for each fork, given the number of live threads and the
    chunk's estimate, whether the chunk becomes a lane here; otherwise, if the limits have enough left to lend, its
    ``ForkEvent`` has a snapshot and limits, and the parent waits for ``absorb`` or ``adopt``. With ``lent`` the
    limits of this request are lent ones: a chunk that they would cut is given back instead, with the finish reason
    short. ``progress`` is what was decoded of it elsewhere before. ``logprobs`` is the number of likeliest tokens that
    each ``TokenEvent`` reports beside its own (0: none; ``None``: nothing is computed). Only requests of the same
    ``cache_salt`` share prefixes: how soon a token comes tells whether somebody has sent the same prompt before.
    ``drafts`` lets the engine draft tokens; they change no token. The text follows ``structure``, if there is one;
    there are no promises then. ``prompt_logprobs`` is the number of likeliest tokens to report beside each token of the
    prompt but the first (``None``: nothing); a cached prefix has none. ``conversation``: the prompt is a chat's, whose
    next turn may follow.

    Raises ``UserError`` for a number of log-probabilities that is none.
    """

    prompt_ids: Sequence[int] = ()
    snapshot: Snapshot | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: Limits = field(default_factory=Limits)
    parallel: bool = True
    forced: Sequence[int] | None = None
    place_locally: Callable[[int, int], bool] | None = None
    lent: bool = False
    progress: ThreadProgress = field(default_factory=ThreadProgress)
    logprobs: int | None = None
    cache_salt: str = ""
    drafts: bool = True
    structure: "Structure | None" = None
    conversation: bool = False
    prompt_logprobs: int | None = None
    request_id: str = ""

    def __post_init__(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not (_is_integer(value) and value >= 0):
                raise UserError(f"{name}: {value!r}, expected None or an integer of at least 0")

    def replace(self, **changes: object) -> "Request":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def checked_length(prompt: Sequence[int], vocab_size: int) -> int:
    """Return the number of a prompt's tokens. Raises ``UserError`` if there are none, or one is not the model's: an
    embedding that lacks it would end the step of all requests."""
    if not len(prompt):
        raise UserError("prompt: it is empty, expected at least one token")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            raise UserError(f"prompt: token {token}, but the model has the tokens 0 to {vocab_size - 1}")
    return len(prompt)


@dataclass(slots=True)
class Event:
    """Something that happened to a request: ``time`` in seconds of ``time.perf_counter``, engine ``step``.

    Not frozen: one is made for each token, and a frozen one takes five times as long to make.
    """

    request_id: str
    time: float
    step: int
    thread: int


@dataclass(slots=True)
class TokenEvent(Event):
    """The thread named ``path`` produced a token; ``logprobs`` is set if the request asked for it."""

    token: int
    path: Path
    logprobs: Logprobs | None = None


@dataclass(slots=True)
class ForkEvent(Event):
    """A promise closed. ``snapshot``, which makes what another engine needs, and ``lent`` are set if the chunk is to be
    decoded elsewhere. Who follows the answer by its tokens makes the same snapshot himself, at no cost here."""

    child: int
    path: Path
    topic: str
    estimate: int
    snapshot: Callable[[], Snapshot] | None = None
    lent: Limits | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer. ``text`` is what a user sees; ``document`` is ``None`` if a stop string cut it.

    Times in seconds: ``queue_s`` until admission, ``ttft_s`` until the first token, ``total_s`` to the end,
    all from submission. ``steps`` counts the forwards from the first token to the last. If all tokens came from other
    engines, it is 0 and ``ttft_s`` is ``total_s``. ``cached_tokens`` of the prompt were not computed again: an earlier
    request had left them.
    """

    request_id: str
    response_ids: tuple[int, ...]
    text: str
    document: Document | None
    trace: Trace
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    num_tokens: int
    critical_path: int
    steps: int
    queue_s: float
    ttft_s: float
    total_s: float
    prompt_logprobs: tuple[Logprobs, ...] = ()


@dataclass(slots=True)
class DoneEvent(Event):
    """The request is over: ``finish_reason`` is stop, length, repetition or short, or, then there is no result,
    cancelled or failed, which ``error`` explains."""

    finish_reason: str
    result: Result | None
    error: Exception | None = None

    def outcome(self) -> Result:
        """Return the result of a request that was not cancelled; raises its error if it failed."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class EngineFull(UserError):
    """A chunk of another engine's answer found no free slot; chunks do not wait for one."""


class UnknownRequest(UserError):
    """The request does not decode here, or not any longer."""


class EngineStopped(RuntimeError):
    """The engine was stopped, or its step failed, while a request was under way."""
