"""Sends long responses at the pace of their clients, and gives up those that nobody reads.

Between replicas, gRPC's flow control lets a slow reader slow its answer down. Inside the Gateway's replica Ray Serve
queues what a response sends without bound; so the response waits there itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from serve.calls.ray_serve import unsent
from serve.errors import timed_out
from serve.gateway.proxy import WRITE_TIMEOUT
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
        if scope["type"] == "http":  # at start-up and shutdown ``send`` is no queue
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
        self._unsent: Callable[[], int] = lambda: 0
        super().__init__(pieces, **options)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Send the response."""
        self._unsent = scope[_UNSENT]
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Any) -> None:
        """Send head and pieces."""

        async def write(piece: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": more})

        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head | {WRITE_TIMEOUT: self._within_s})
        async with aclosing(self._pieces):
            async for piece in self._pieces:
                await write(piece)
                if self._unsent() > MOST_UNSENT and not await _taken(self._unsent, self._within_s):
                    self._gave_up()
                    await write(self._last)
                    return  # without an end: the server then closes the connection
        await write("", more=False)


def unread_event(within_s: float) -> str:
    """The last event of a stream whose client has not read it for so many seconds."""
    return sse(timed_out(f"The client has not read the answer for {within_s:g} seconds.").body())


async def _taken(unsent: Callable[[], int], within_s: float) -> bool:
    """Wait until what was queued has been taken; returns whether that happened in time."""
    loop = asyncio.get_running_loop()
    until, before = loop.time() + within_s, unsent()
    while (left := unsent()) > MOST_UNSENT and left >= before:
        if loop.time() > until:
            return False
        await asyncio.sleep(_POLL_S)
    return True
