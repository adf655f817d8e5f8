"""Who may ask, and how much at a time: API keys and their limits, counted in each Gateway replica."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from serve.addresses import is_loopback
from serve.config import KeySettings
from serve.errors import ApiError, rate_limited, unauthorized
from serve.keys import Key, KeyRing


@dataclass(slots=True)
class _Use:
    """What a key has left of its minute (as of ``at``), and how many of its requests are under way."""

    left: float
    at: float
    running: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key's name and its limits; ``None`` for anybody on this machine."""

    name: str | None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None


class Guard:
    """Checks keys and keeps their limits."""

    def __init__(self, settings: KeySettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._ring = None if settings.path is None else KeyRing(settings.path)
        self._uses: dict[str, _Use] = {}

    def caller(self, headers: Mapping[str, str], peer: str | None) -> Caller:
        """Who sends these headers from this address. Raises ``ApiError`` 401 or 403."""
        if self._ring is None:
            if not is_loopback(peer):
                raise ApiError(
                    "This service has no API keys and answers only the machine that it runs on.",
                    status=403,
                    code="no_keys_configured",
                )
            return Caller(None)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise unauthorized("You didn't provide an API key; send it as Authorization: Bearer YOUR_KEY.")
        found = self._ring.find(key.strip())
        if found is None:
            raise unauthorized("Incorrect API key provided.")
        name, entry = found
        return Caller(name, *self._limits(entry))

    def _limits(self, entry: Key) -> tuple[int | None, int | None]:
        return (
            entry.requests_per_minute or self._settings.requests_per_minute,
            entry.max_concurrent or self._settings.max_concurrent,
        )

    def count(self, caller: Caller) -> None:
        """One more request. Raises ``ApiError`` 429 if the caller has used up its rate.

        A key may use its whole minute at once; it then gets the next request after a minute by its rate.
        """
        rate = caller.requests_per_minute
        if caller.name is None or rate is None:
            return
        use, now = self._use(caller), self._clock()
        use.left = min(rate, use.left + (now - use.at) * rate / 60)
        use.at = now
        if use.left < 1:
            wait = math.ceil((1 - use.left) * 60 / rate)
            raise rate_limited(
                f"Rate limit reached for this key: {rate} requests a minute. Try again in {wait} s.", wait
            )
        use.left -= 1

    @contextmanager
    def running(self, caller: Caller) -> Iterator[None]:
        """While a request of the caller is under way. Raises ``ApiError`` 429 if it has too many."""
        if caller.name is None:
            yield
            return
        use, most = self._use(caller), caller.max_concurrent
        if most is not None and use.running >= most:
            raise rate_limited(
                f"This key has {use.running} requests under way, and may have {most}; try again later.", 1
            )
        use.running += 1
        try:
            yield
        finally:
            use.running -= 1

    def _use(self, caller: Caller) -> _Use:
        assert caller.name is not None
        full = float(caller.requests_per_minute or 0)
        return self._uses.setdefault(caller.name, _Use(full, self._clock()))
