"""Middleware for Ray Serve's HTTP proxy: sends bodies to the Gateway with their heads, leaves clients that read
nothing, answers requests whose Gateway is lost, and hides from Ray Serve the headers by which clients could steer it.

Without it the proxy sends a request's head only, and the replica fetches the body with another call, which takes as
long as all the rest of a short request. Ray Serve loads ``middlewares`` into its proxy because
``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` names it (serve/calls/ray_serve.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from serve.errors import unavailable

#: The key of the ASGI scope that holds the body.
BODY = "pasta.body"
#: The Gateway fetches bodies that are longer, or have no Content-Length.
_MOST_BYTES = 256 * 1024
#: The key of a response's first ASGI message that tells how long its client may read nothing, in seconds.
WRITE_TIMEOUT = "pasta.write_timeout_s"
#: The Gateway is to give the response up first, and say so in its log.
LATER_S = 2.0
#: The connection of the request that is being handled, in the process that has it: Ray Serve's proxy, or a Gateway to
#: which clients or HAProxy are connected without that proxy.
CONNECTION: ContextVar[Any] = ContextVar("pasta.connection", default=None)
#: Headers that Ray Serve takes from clients: replica, deadline, whether it watches for their leaving, trace.
_OF_RAY_SERVE = frozenset(
    (
        b"serve-multiplexed-model-id",
        b"traceparent",
        b"tracestate",
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
        b"x-session-id",
    )
)
#: How long the proxy waits for the rest of a body: clients send head and body apart.
_SOON_S = 0.1


class OwnHeaders:
    """ASGI middleware for the proxy: removes the headers by which clients can steer Ray Serve itself, such as one that
    keeps an answer decoding for a client that has gone.

    Ray Serve fails on headers of its own that are not UTF-8, and reads X-Request-Id as one: what is no UTF-8 there
    becomes UTF-8, for the Gateway to refuse.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            scope["headers"] = [
                (name, _utf8(value) if name == b"x-request-id" else value)
                for name, value in scope["headers"]
                if name.replace(b"_", b"-") not in _OF_RAY_SERVE
            ]
        await self._app(scope, receive, send)


class SendBody:
    """ASGI middleware for the proxy: puts a body that is there into the scope, which Ray sends to the replica.

    One that has not arrived soon after its head goes the usual way: the Gateway has the deadline for it, counts it as
    open, and knows whose it is.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and 0 < _length(scope) <= _MOST_BYTES:
            arrived = await _arrived(receive)
            if not arrived or arrived[-1].get("more_body"):
                receive = _continued(arrived, receive)
            elif arrived[-1]["type"] == "http.disconnect":
                return
            else:
                scope[BODY] = b"".join(message["body"] for message in arrived)
        await self._app(scope, receive, send)


async def _arrived(receive: Any) -> list[Any]:
    """The messages of a body that arrive within ``_SOON_S``."""
    arrived: list[Any] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_SOON_S):
            while not arrived or arrived[-1].get("more_body"):
                arrived.append(await receive())
    return arrived


def _continued(arrived: list[Any], receive: Any) -> Any:
    """A ``receive`` that delivers what has arrived first."""
    waiting = deque(arrived)

    async def received() -> Any:
        return waiting.popleft() if waiting else await receive()

    return received


class TakeBody:
    """ASGI middleware for the Gateway: delivers a body from the scope as if it had been received."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        body = scope.pop(BODY, None)
        taken = body is None

        async def received() -> Any:
            nonlocal taken
            if taken:
                return await receive()
            taken = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, received, send)


class AnswerHead:
    """ASGI middleware for the Gateway: answers HEAD, which load balancers and ``curl -I`` send, as GET; the server
    leaves the body out."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class EndUnread:
    """ASGI middleware for the proxy: ends a connection whose client reads nothing of a long response for as long as
    its first message says (``WRITE_TIMEOUT``), and ``LATER_S`` more.

    The Gateway gives such a response up, but cannot tell the proxy: that waits for the client, with what it has.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        transport = _transport(send)
        CONNECTION.set(transport)
        within_s: float | None = None

        async def sent(message: Any) -> None:
            nonlocal within_s
            within_s = message.get(WRITE_TIMEOUT, within_s)
            if within_s is None or not transport.get_write_buffer_size():
                await send(message)  # it does not wait for the client
                return
            with unread_deadline(transport, within_s + LATER_S, transport.abort):
                await send(message)

        await self._app(scope, receive, sent)


class AnswerLost:
    """ASGI middleware for the proxy: answers a request with 503 if its Gateway is lost before it has answered.

    Ray Serve's proxy then sends nothing, and its server would make that a 500 in plain text, which names no error and
    no time to come again.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        begun = scope["type"] != "http"

        async def sent(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        await self._app(scope, receive, sent)
        if not begun:  # to a client that has gone the server sends nothing
            error = unavailable(
                "A part of the service was lost before it answered; send the request again.", retry_after_s=1
            )
            given = {name: value for name, value in Headers(scope=scope).items() if name == "x-request-id"}
            response = JSONResponse(error.body(), error.status, {**error.headers, **given})
            await response(scope, receive, send)


@contextmanager
def unread_deadline(transport: Any, within_s: float, expired: Callable[[], object]) -> Iterator[None]:
    """For the block: call ``expired`` once the client has taken none of the data that waits for it for so long."""
    loop, left = asyncio.get_running_loop(), transport.get_write_buffer_size()
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal left, timer
        if (now := transport.get_write_buffer_size()) < left:
            left, timer = now, loop.call_later(within_s, check)
        else:
            expired()

    timer = loop.call_later(within_s, check)
    try:
        yield
    finally:
        timer.cancel()


def _transport(send: Any) -> Any:
    """The connection behind the ``send`` of uvicorn, which runs Ray Serve's proxy."""
    return send.__self__.transport


def middlewares() -> list[Middleware]:
    """The middleware for Ray Serve's proxy, which calls this when it starts. The last one is the outermost."""
    return [Middleware(AnswerLost), Middleware(SendBody), Middleware(EndUnread), Middleware(OwnHeaders)]


def _utf8(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value


def _length(scope: MutableMapping[str, Any]) -> int:
    value = Headers(scope=scope).get("content-length", "")
    return int(value) if value.isdecimal() else 0
