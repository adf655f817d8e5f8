"""A Decoder's record of the Interpreters that use it: who sent each request, and who still renews its lease."""

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter


class Interpreters:
    """The Interpreters that use a Decoder: which one sent each open request, and how many there are."""

    def __init__(self, lease_s: float) -> None:
        #: The Interpreter of each open request.
        self.owners: dict[str, str] = {}
        self._lease_s = lease_s
        self._last: dict[str, float] = {}

    def seen(self, interpreter: str) -> int:
        """Note a call of an Interpreter; returns how many Interpreters have called within the last lease. Each calls
        three times a lease."""
        now = perf_counter()
        self._last[interpreter] = now
        self._last = {name: last for name, last in self._last.items() if now - last <= self._lease_s}
        return len(self._last)


class Leases:
    """Ends requests that no Interpreter renews in time. For one event loop."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._timers: dict[str, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._timers

    def open(self, request_id: str, expire: Callable[[], None]) -> None:
        """Start a request's lease: ``expire`` is called once unless the request is closed or renewed in time."""
        self._set(request_id, self._lease_s, self._check_again, expire)

    def renew(self, request_ids: Iterable[str]) -> None:
        """Start a new lease for each of these requests that is open."""
        for request_id in request_ids:
            if (found := self._timers.get(request_id)) is not None:
                found[0].cancel()
                self.open(request_id, found[1])

    def close(self, request_id: str) -> bool:
        """End a request's lease; returns whether it was open."""
        found = self._timers.pop(request_id, None)
        if found is not None:
            found[0].cancel()
        return found is not None

    def _set(
        self, request_id: str, seconds: float, then: Callable[[str], None], expire: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers[request_id] = loop.call_later(seconds, then, request_id), expire

    def _check_again(self, request_id: str) -> None:
        """The lease was not renewed, or this loop was too busy to receive the renewal: check again a little later."""
        self._set(request_id, self._lease_s / 10, self._expire, self._timers[request_id][1])

    def _expire(self, request_id: str) -> None:
        _, expire = self._timers.pop(request_id)
        expire()
