"""Middleware for Ray Serve's HTTP proxy: sends bodies to the Gateway with their heads, and leaves clients that read
nothing.

Without it the proxy sends a request's head only, and the replica fetches the body with another call, which takes as
long as all the rest of a short request. Ray Serve loads ``middlewares`` into its proxy because
``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` names it (serve/calls/ray_serve.py).
"""

import asyncio
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware

#: The key of the ASGI scope that holds the body.
BODY = "pasta.body"
#: The Gateway fetches bodies that are longer, or have no Content-Length.
_MOST_BYTES = 256 * 1024
#: The key of a response's first ASGI message that tells how long its client may read nothing, in seconds.
WRITE_TIMEOUT = "pasta.write_timeout_s"
#: The Gateway is to give the response up first, and say so in its log.
_LATER_S = 2.0
#: How long the proxy waits for the rest of a body: clients send head and body apart.
_SOON_S = 0.1


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


class EndUnread:
    """ASGI middleware for the proxy: ends a connection whose client reads nothing of a long response for as long as
    its first message says (``WRITE_TIMEOUT``), and ``_LATER_S`` more.

    The Gateway gives such a response up, but cannot tell the proxy: that waits for the client, with what it has.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        within_s: float | None = None

        async def sent(message: Any) -> None:
            nonlocal within_s
            within_s = message.get(WRITE_TIMEOUT, within_s)
            if within_s is None:
                await send(message)
                return
            deadline = _Deadline(_transport(send), within_s + _LATER_S)
            try:
                await send(message)
            finally:
                deadline.cancel()

        await self._app(scope, receive, sent)


class _Deadline:
    """Aborts a connection after so many seconds in which its client has taken none of the data that waits for it."""

    def __init__(self, transport: Any, within_s: float) -> None:
        self._transport, self._within_s = transport, within_s
        self._left = transport.get_write_buffer_size()
        self._begin()

    def cancel(self) -> None:
        """Stop: the connection is not aborted."""
        self._timer.cancel()

    def _begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._within_s, self._check)

    def _check(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._left:
            self._left = left
            self._begin()
        else:
            self._transport.abort()


def _transport(send: Any) -> Any:
    """The connection behind the ``send`` of uvicorn, which runs Ray Serve's proxy."""
    return send.__self__.transport


def middlewares() -> list[Middleware]:
    """The middleware for Ray Serve's proxy, which calls this when it starts. The last one is the outermost."""
    return [Middleware(SendBody), Middleware(EndUnread)]


def _length(scope: MutableMapping[str, Any]) -> int:
    value = Headers(scope=scope).get("content-length", "")
    return int(value) if value.isdecimal() else 0
