"""Leases: what nobody claims in time is given up."""

import asyncio
from collections.abc import Callable, Iterable


class Leases:
    """Open requests of a Decoder, each with what ends it. For one event loop."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._timers: dict[str, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def open(self, request_id: str, expire: Callable[[], None]) -> None:
        """Call ``expire`` once unless the request is closed, or renewed often enough."""
        self._set(request_id, self._lease_s, self._doubt, expire)

    def renew(self, request_ids: Iterable[str]) -> None:
        """Those of these requests that are open live for another lease."""
        for request_id in request_ids:
            if (found := self._timers.get(request_id)) is not None:
                found[0].cancel()
                self.open(request_id, found[1])

    def close(self, request_id: str) -> bool:
        """The request is over; whether it was open."""
        found = self._timers.pop(request_id, None)
        if found is not None:
            found[0].cancel()
        return found is not None

    def _set(
        self, request_id: str, seconds: float, what: Callable[[str], None], expire: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers[request_id] = loop.call_later(seconds, what, request_id), expire

    def _doubt(self, request_id: str) -> None:
        """Nobody has claimed it in time, or this loop was late and has not heard yet: look again in a moment."""
        self._set(request_id, self._lease_s / 10, self._expire, self._timers[request_id][1])

    def _expire(self, request_id: str) -> None:
        _, expire = self._timers.pop(request_id)
        expire()
