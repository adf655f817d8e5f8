"""Streams at the pace of their clients, and gives up those that nobody reads.

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
from serve.gateway.responses import sse

#: The most messages of one response that wait for the proxy: far more than a client that reads ever leaves.
MOST_UNSENT = 64
_POLL_S = 0.02
#: The key of the ASGI scope that holds a function: how many messages of the response wait.
_UNSENT = "pasta.unsent"


class PacedApp(FastAPI):
    """An application whose responses know how much of them waits to be sent."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":  # the others' send, as at the start, is no queue
            scope[_UNSENT] = unsent(send)
        await super().__call__(scope, receive, send)


class PacedStream(StreamingResponse):
    """Server-sent events that wait for their reader, for ``within_s`` at most; then ``gave_up`` is called, and the
    stream's source closed."""

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        within_s: float,
        gave_up: Callable[[], None],
        **options: Any,
    ) -> None:
        self._events, self._within_s, self._gave_up = events, within_s, gave_up
        super().__init__(events, media_type="text/event-stream", **options)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Send the response."""
        self.body_iterator = paced(self._events, scope[_UNSENT], self._within_s, self._gave_up)
        await super().__call__(scope, receive, send)


async def paced(
    events: AsyncGenerator[str, None], unsent: Callable[[], int], within_s: float, gave_up: Callable[[], None]
) -> AsyncGenerator[str, None]:
    """Pass the events on while their reader takes them; end them with an error once it has taken none for
    ``within_s``."""
    async with aclosing(events):
        async for event in events:
            yield event
            if unsent() > MOST_UNSENT and not await _taken(unsent, within_s):
                gave_up()
                break
        else:
            return
    error = timed_out(f"The client has not read the answer for {within_s:g} seconds.")
    yield sse(error.body())


async def _taken(unsent: Callable[[], int], within_s: float) -> bool:
    """Wait until what was queued has been taken; returns whether that happened in time."""
    loop = asyncio.get_running_loop()
    until, before = loop.time() + within_s, unsent()
    while (left := unsent()) > MOST_UNSENT and left >= before:
        if loop.time() > until:
            return False
        await asyncio.sleep(_POLL_S)
    return True
