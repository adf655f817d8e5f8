"""The end of a service in order: what is under way is finished, what is new is sent elsewhere."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from serve.errors import unavailable

#: How long a response that was written takes at most through the proxy.
_LAST_WAY_S = 0.3


class Drain:
    """The open requests of one Gateway, and whether it takes new ones. For one event loop."""

    def __init__(self) -> None:
        self.draining = False
        self._open = 0
        self._ended = asyncio.Event()

    def check(self) -> None:
        """Raise ``ApiError`` 503 if no new request is taken: another replica, or this service later, may take it."""
        if self.draining:
            raise unavailable("The service is shutting down; send the request again.", retry_after_s=1)

    @contextmanager
    def request(self) -> Iterator[None]:
        """While a request is under way. Raises as :meth:`check` does."""
        self.check()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._ended.set()

    async def drain(self) -> None:
        """Take no new requests; returns when the last open one has ended and its response is on its way."""
        self.draining = True
        while self._open:
            self._ended.clear()
            await self._ended.wait()
        await asyncio.sleep(_LAST_WAY_S)
