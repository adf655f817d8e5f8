"""The messages between deployments: plain data, without torch, Ray or HTTP."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import field
from typing import Any, Literal

from pasta.engine import SamplingParams
from pasta.engine.structure import Grammar
from pasta.interpreter import Limits, Path, RepetitionDetection, Snapshot
from pasta.messages import message
from pasta.placement import Policy

DecodingMode = Literal["parallel", "sequential"]
#: The messages of a conversation, a text to be continued, or the token ids of such a text.
PromptInput = list[dict[str, str]] | str | list[int]
#: A stage on a request's way through the service, and when it began, in seconds since the epoch: processes of one
#: machine share this clock, those of several nodes nearly.
Mark = tuple[str, float]


@message
class Order:
    """Gateway → Interpreter: a validated request for ``n`` answers to each of its prompts.

    ``temperature`` is set if the request gives one; that of ``sampling`` is not read.
    ``logprobs`` is how many of the likeliest tokens to report beside each token of the text; ``None``: report no
    log-probabilities. ``http_request_id`` is the request's id in logs (serve/observe/logs.py). ``cache_salt`` names the
    client: only its own requests share prefixes with it. The text follows ``grammar``, if there
    is one. ``echo``: each answer begins with its prompt. ``repetition_detection``: the request's own, instead of the
    service's. ``marks``: its way so far, if it wants a trace. ``template_options``: variables of the chat template.
    ``num_interpreters`` take requests, as the Gateway knows; 0: it does not say.
    """

    request_id: str
    model: str
    prompts: list[PromptInput]
    n: int
    logprobs: int | None
    max_tokens: int | None
    temperature: float | None
    sampling: SamplingParams
    mode: DecodingMode | None
    max_threads: int | None
    wants_events: bool
    wants_document: bool
    placement: Policy | None = None
    wants_trace: bool = False
    http_request_id: str = ""
    cache_salt: str = ""
    drafts: bool = True
    grammar: Grammar | None = None
    echo: bool = False
    repetition_detection: RepetitionDetection | None = None
    marks: tuple[Mark, ...] = ()
    template_options: dict[str, int] = field(default_factory=dict)
    num_interpreters: int = 0

    @property
    def num_choices(self) -> int:
        """The number of answers to all prompts together."""
        return self.n * len(self.prompts)

    def decoding_mode(self, default: DecodingMode) -> DecodingMode:
        """How the answers are decoded by a model whose own mode is ``default``. A structured answer has no promises; an
        echo, which scores text token by token, only if the request names the mode."""
        if self.grammar is not None:
            return "sequential"
        return self.mode or ("sequential" if self.echo else default)


@message
class DecodeOrder:
    """Interpreter → Decoder: decode one response, or a chunk of one whose home is another Decoder (``snapshot``).

    ``request_id`` names this attempt, ``interpreter`` the Interpreter that sends it. A ``conversation`` may go on after
    the answer. ``tokens`` are those decoded before, on other replicas. ``lent`` has the limits of the chunks below it
    that other Decoders decode.
    """

    request_id: str
    model: str
    prompt_ids: list[int]
    limits: Limits
    parallel: bool
    sampling: SamplingParams
    logprobs: int | None = None
    placement: Policy = "local"
    snapshot: Snapshot | None = None
    tokens: tuple[tuple[Path, int], ...] = ()
    lent: dict[Path, Limits] = field(default_factory=dict)
    http_request_id: str = ""
    cache_salt: str = ""
    interpreter: str = ""
    drafts: bool = True
    grammar: Grammar | None = None
    conversation: bool = False
    prompt_logprobs: int | None = None

    @property
    def prefix_salt(self) -> str:
        """Names those with which it shares prefixes. An attempt that reports its prompt's log-probabilities shares with
        none: what another request has computed has none any more."""
        return self.cache_salt if self.prompt_logprobs is None else self.request_id


#: The log-probability of the chosen token, and the likeliest ids with theirs.
TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]
#: Decoder → Interpreter: (thread, token id, seconds since submission); all else follows from the tokens.
#: Log-probabilities come fourth if the order asked for them.
TokenItem = tuple[Path, int, float] | tuple[Path, int, float, TokenLogprobs]


@message
class Lent:
    """Decoder → Interpreter, after the token that forked it: the Interpreter has chunk ``path`` decoded on a replica of
    its choice, within ``limits``, and returns its tokens."""

    path: Path
    limits: Limits


@message
class Told:
    """Decoder → Interpreter, on request and as a response ends: the names of the ``prefixes`` that each model's engine
    holds (``pasta.placement.prefix_digests``), the threads and waiting requests that it decodes for other Interpreters,
    how many Interpreters have called lately, and how many requests of others hold a slot or wait for one, by model."""

    prefixes: dict[str, frozenset[bytes]]
    other_lanes: int
    num_interpreters: int
    other_slots: Mapping[str, int] = field(default_factory=dict)


@message
class Decoded:
    """Decoder → Interpreter, last: how the response ended. Times in seconds since submission.

    ``steps`` counts the engine's forwards from the first token to the last. ``step_s`` is the time of a step with a
    single lane on that Decoder while idle (0: not known). ``cached_tokens`` of the prompt were not computed again. The
    finish reason of a chunk that needs more than it was lent is short. ``submitted_at`` is in seconds since the epoch.
    ``told``: what the Decoder holds now.
    """

    finish_reason: str
    steps: int
    queue_s: float
    ttft_s: float
    total_s: float
    step_s: float = 0.0
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    submitted_at: float = 0.0
    told: Told | None = None


@message
class Accepted:
    """Interpreter → Gateway, first: a Decoder has accepted the request."""

    prompt_tokens: int


@message
class TextToken:
    """A token of the text, its log-probability (a prompt's first token has none), the likeliest others, and the offset
    in the text where it begins."""

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...]
    offset: int = 0


@message
class Delta:
    """Interpreter → Gateway: the next text of choice ``index`` in reading order, with the events and the
    log-probabilities that the request asked for. ``completion_tokens`` of the choice are decoded by now, tags and text
    that is not shown yet among them, unless a stop string may still cut that text: they never fall."""

    text: str
    events: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TextToken] = field(default_factory=list)
    index: int = 0
    completion_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.text or self.events or self.logprobs)


@message
class Finished:
    """Interpreter → Gateway, last of choice ``index``: token counts, and the extension object ``pasta``.

    ``cached_tokens`` come with the last choice of a prompt: those of the prompt that were computed for none of its
    choices.
    """

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    pasta: dict[str, Any]
    index: int = 0
    cached_tokens: int = 0


@message
class Refused:
    """Decoder → Interpreter or Interpreter → Gateway, as the only message: the request cannot be served."""

    message: str
    status: int = 400
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    #: Rolling update: the Gateway retries on an Interpreter of the new version.
    superseded: bool = False
    #: The Interpreter ``by`` has no such model: it is of the version before, or the update has removed the model.
    no_model: bool = False
    #: ``by`` has no room for this request, which did not wait for any: another one may have.
    full: bool = False
    #: It would refuse any request of this shape too, until another request ends.
    no_room: bool = False
    by: str = ""


@message
class PromptTokens:
    """Interpreter → Gateway: how many tokens a prompt has, and as JSON, which the Gateway sends on as it is, their ids
    and, if asked for, the text of each."""

    count: int
    tokens: bytes
    strings: bytes


@message
class Version:
    """What a Decoder decodes: its service's version (``ServeConfig.version``), and the number format of each model and
    the fingerprint of the weights that it has read.

    With ``dtype: auto`` machines of several kinds may have chosen several formats. One path or name may hold other
    weights on another machine, or later."""

    service: str
    formats: dict[str, str]
    weights: dict[str, str] = field(default_factory=dict)


#: An item of a Decoder's stream. All items that are ready at once go in one message, since each message costs as much
#: as a token.
Decoding = list[TokenItem] | Lent | Decoded | Refused
#: An item of an Interpreter's stream, which comes in lists too.
Update = Accepted | Delta | Finished | Refused
UpdateBatches = AsyncGenerator[list[Update], None]
