"""Sends long responses at the pace of their clients, and gives up those that nobody reads.

Between replicas, gRPC's flow control lets a slow reader slow its answer down. Inside the Gateway's replica Ray Serve
queues what a response sends to its proxy without bound; so the response waits there itself. Where clients (or HAProxy)
are connected to the Gateway itself, it waits for their connections.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from serve.calls.ray_serve import unsent
from serve.errors import timed_out
from serve.gateway.proxy import CONNECTION, LATER_S, WRITE_TIMEOUT, unread_deadline
from serve.gateway.responses import sse

#: The most messages of one response that may wait for the proxy: far more than a reading client leaves waiting.
MOST_UNSENT = 64
_POLL_S = 0.02
#: The key of the ASGI scope that holds a function: how many messages of the response wait.
_UNSENT = "pasta.unsent"


class PacedApp(FastAPI):
    """An application whose responses know how many of their messages wait to be sent."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        # At start-up and shutdown ``send`` is no queue.
        if scope["type"] == "http" and CONNECTION.get() is None:
            scope[_UNSENT] = unsent(send)
        await super().__call__(scope, receive, send)


class PacedStream(StreamingResponse):
    """A response whose pieces wait until the client has read the ones before.

    If the client reads nothing for ``within_s``, it calls ``gave_up``, closes the source, sends ``last`` and ends the
    connection.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[str, None],
        within_s: float,
        gave_up: Callable[[], None],
        *,
        last: str = "",
        **options: Any,
    ) -> None:
        self._pieces, self._within_s, self._gave_up, self._last = pieces, within_s, gave_up, last
        self._to: _ByProxy | _Directly | None = None
        super().__init__(pieces, **options)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Send the response."""
        transport = CONNECTION.get()
        self._to = (
            _ByProxy(scope[_UNSENT], self._within_s)
            if transport is None
            else _Directly(transport, self._within_s)
        )
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Any) -> None:
        """Send head and pieces."""
        assert self._to is not None

        async def write(piece: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": more})

        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head | {WRITE_TIMEOUT: self._within_s})
        async with aclosing(self._pieces):
            async for piece in self._pieces:
                if not await self._to.taken(write(piece)):
                    self._gave_up()
                    await self._to.end(write(self._last))
                    return  # without an end: the server then closes the connection
        await write("", more=False)


def unread_event(within_s: float) -> str:
    """The last event of a stream whose client has not read it for so many seconds."""
    return sse(timed_out(f"The client has not read the answer for {within_s:g} seconds.").body())


class _ByProxy:
    """Sends pieces to Ray Serve's proxy, through a queue that takes them all."""

    def __init__(self, unsent: Callable[[], int], within_s: float) -> None:
        self._unsent, self._within_s = unsent, within_s

    async def taken(self, sending: Awaitable[None]) -> bool:
        """Send a piece; returns whether the client reads the ones before in time."""
        await sending
        if self._unsent() <= MOST_UNSENT:
            return True
        loop = asyncio.get_running_loop()
        until, before = loop.time() + self._within_s, self._unsent()
        while (left := self._unsent()) > MOST_UNSENT and left >= before:
            if loop.time() > until:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def end(self, sending: Awaitable[None]) -> None:
        """Send the last piece; the proxy ends the connection."""
        await sending


class _Directly:
    """Sends pieces on the client's connection, which waits while its buffer is full."""

    def __init__(self, transport: Any, within_s: float) -> None:
        self._transport, self._within_s = transport, within_s

    async def taken(self, sending: Awaitable[None]) -> bool:
        """Send a piece; returns whether the client reads the ones before in time."""
        if not self._transport.get_write_buffer_size():
            await sending  # it does not wait
            return True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                with unread_deadline(self._transport, self._within_s, lambda: limit.reschedule(loop.time())):
                    await sending
        except TimeoutError:
            return False
        return True

    async def end(self, sending: Awaitable[None]) -> None:
        """Send the last piece if the client reads now; else end its connection."""
        try:
            async with asyncio.timeout(LATER_S):
                await sending
        except TimeoutError:
            self._transport.abort()
