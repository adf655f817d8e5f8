"""A client of the service: sends requests and times their answers."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any, Literal, TypeVar

import aiohttp
import httpx

from pasta.benchmark.load.sse import EventReader
from pasta.data.endpoint import retry_after_s
from pasta.stages.records import Record

#: How a request ended. ``whole``: its answer arrived; ``left``: the client left, as it was told to; ``refused``: 429,
#: or 503 with Retry-After; ``stuck``: no end in time; ``lost``: anything else.
Ending = Literal["whole", "left", "refused", "stuck", "lost"]
_DONE = "[DONE]"
#: Pieces of a body that is sent slowly.
_UPLOADS = 8
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Ask:
    """A greedy chat completion to ask for. ``leave_after``: go away after so many pieces of text (streams only).

    ``read_pause_s``: read a little, and wait so long before the next bit. ``upload_s``: take so long to send the body.
    ``more`` are further fields of the body.
    """

    messages: Sequence[Mapping[str, str]]
    model: str
    pasta: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stream: bool = True
    leave_after: int | None = None
    read_pause_s: float = 0.0
    upload_s: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slow(self) -> bool:
        """Whether the client takes its time."""
        return bool(self.read_pause_s or self.upload_s)

    def body(self) -> dict[str, Any]:
        """The request's JSON."""
        body: dict[str, Any] = {"model": self.model, "messages": [*self.messages], "temperature": 0}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.stream:
            body["stream"] = True
        if self.pasta:
            body["pasta"] = dict(self.pasta)
        return {**body, **self.more}


@dataclass(slots=True)
class TimedReply:
    """How a request ended. Times in seconds since it was sent (``sent_at``, since the epoch): the first text, the end.

    ``pasta`` is the service's own account of the answer, ``usage`` OpenAI's, if it was asked for; ``error`` says what
    went wrong. ``left_at`` is when the client began to go away, by ``perf_counter``. ``retryable``: what went wrong is
    no fault of the request's: it may be sent again. ``retry_after_s`` is what Retry-After asks for, 0 if that is no
    pause that can be read.
    """

    ending: Ending
    total_s: float = 0.0
    ttft_s: float | None = None
    text: str = ""
    pasta: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    retry_after_s: float | None = None
    error: str = ""
    left_at: float = 0.0
    retryable: bool = False
    sent_at: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that were decoded for it, tags counted."""
        return int(self.pasta.get("tokens", self.usage.get("completion_tokens", 0)))

    def record(self) -> Record:
        """The reply as a record: a digest instead of the text, and of the service's account only what metrics need."""
        kept: Record = {
            "ending": self.ending,
            "total_s": round(self.total_s, 6),
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "tokens": self.tokens,
            "text": hashlib.sha256(self.text.encode()).hexdigest()[:12],
        }
        kept |= {
            name: self.pasta[name] for name in ("threads", "spills", "redispatches") if name in self.pasta
        }
        return {**kept, "status": self.status, "error": self.error} if self.error else kept


@dataclass(frozen=True, slots=True)
class LoadClient:
    """Connections to the service at ``url``: ``session`` for the answers that are timed, ``http`` for all else.

    To read an event httpx takes three times as much of a core as aiohttp does, and the server has the same cores.
    """

    url: str
    http: httpx.AsyncClient
    session: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def connect(url: str, api_key: str | None = None, *, reuse: bool = True) -> AsyncIterator[LoadClient]:
    """A client of the service at ``url`` that opens as many connections as it is asked to, and keeps them for later
    requests if they are to ``reuse``."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256 if reuse else 0)
    async with (
        # No proxy, which would be measured too; `send` has a deadline of its own, for the whole answer.
        httpx.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=None, trust_env=False
        ) as http,
        _session(headers, aiohttp.TCPConnector(limit=0, force_close=not reuse)) as session,
    ):
        yield LoadClient(url.rstrip("/"), http, session)


async def send(client: LoadClient, ask: Ask, timeout_s: float = 600.0) -> TimedReply:
    """Send a request and follow its answer to the end; nothing that the service does wrong raises."""
    answer, begun = TimedReply("lost", sent_at=time()), perf_counter()
    body = json.dumps(ask.body()).encode()
    try:
        async with (
            asyncio.timeout(timeout_s),
            _narrow(client) if ask.read_pause_s else contextlib.nullcontext(client.session) as session,
            session.post(
                f"{client.url}/v1/chat/completions",
                data=_trickle(body, ask.upload_s) if ask.upload_s else body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response,
        ):
            answer.status = response.status
            if response.status != 200:
                _read_error(answer, response.headers, await response.read())
            elif ask.stream:
                await _follow(answer, ask, response.content, begun)
            else:
                _read_whole(answer, await response.read())
    except TimeoutError:
        answer.ending, answer.error = "stuck", f"no end within {timeout_s:g} s"
    except (aiohttp.ClientError, ValueError, LookupError, TypeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
        broken = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
        answer.retryable = answer.retryable or broken
    answer.total_s = answer.total_s or perf_counter() - begun
    return answer


def _session(
    headers: Mapping[str, str], connector: aiohttp.TCPConnector, **options: Any
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=None), **options
    )


def _narrow(client: LoadClient) -> aiohttp.ClientSession:
    """Another session with the same service, whose connections hold little that it has not read."""

    def open_socket(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return made

    connector = aiohttp.TCPConnector(socket_factory=open_socket)
    return _session(client.session.headers, connector, read_bufsize=4096)


async def _trickle(body: bytes, within_s: float) -> AsyncIterator[bytes]:
    """The body in pieces, evenly over so many seconds."""
    size = -(-len(body) // _UPLOADS)
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(within_s / _UPLOADS)


async def _follow(answer: TimedReply, ask: Ask, body: aiohttp.StreamReader, begun: float) -> None:
    reader, pieces, finished = EventReader(), 0, False
    async for piece in body.iter_any():
        now = perf_counter()
        if ask.read_pause_s:
            await asyncio.sleep(ask.read_pause_s)
        if answer.total_s:
            continue  # read to its end, a response leaves its connection to the next request
        for data in reader.feed(piece):
            if data == _DONE:
                answer.total_s = now - begun
                answer.ending = "whole" if finished else "lost"
                answer.error = "" if finished else "the stream ended without a finish reason"
                break
            chunk = json.loads(data)
            if "error" in chunk:
                answer.error = str(chunk["error"].get("message", chunk["error"]))
                answer.retryable = chunk["error"].get("code") == "service_unavailable"
                return
            answer.usage = chunk.get("usage") or answer.usage
            if not chunk["choices"]:
                continue
            choice = chunk["choices"][0]
            if text := choice["delta"].get("content"):
                answer.ttft_s = now - begun if answer.ttft_s is None else answer.ttft_s
                answer.text += text
                pieces += 1
            if choice["finish_reason"] is not None:
                finished = True
                answer.pasta = chunk.get("pasta", {})
            if pieces == ask.leave_after:
                answer.ending, answer.left_at = "left", perf_counter()
                return
    if not answer.total_s:
        answer.error, answer.retryable = "the stream broke off", True


def _read_whole(answer: TimedReply, body: bytes) -> None:
    data = json.loads(body)
    answer.text, answer.pasta = data["choices"][0]["message"]["content"], data.get("pasta", {})
    answer.ending = "whole"


def _read_error(answer: TimedReply, headers: Mapping[str, str], body: bytes) -> None:
    if "retry-after" in headers:
        answer.retry_after_s = retry_after_s(headers) or 0.0
    answer.retryable = answer.status >= 500
    told_when = answer.status == 503 and answer.retry_after_s is not None
    answer.ending = "refused" if answer.status == 429 or told_when else "lost"
    answer.error = str(json.loads(body)["error"]["message"])


async def closed_loop(
    asks: Iterable[Asked], clients: int, each: Callable[[Asked], Awaitable[Answered]]
) -> tuple[list[Answered], float]:
    """``clients`` of them, each with its next request, or conversation, as soon as it has its last answer, until there
    is none.

    Returns the answers in the order of the requests, and the seconds from the first one sent to the last one ended.
    """
    waiting = iter(enumerate(asks))
    answers: dict[int, Answered] = {}

    async def client() -> None:
        for number, ask in waiting:
            answers[number] = await each(ask)

    begun = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return [answers[number] for number in sorted(answers)], perf_counter() - begun
