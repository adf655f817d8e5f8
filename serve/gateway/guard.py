"""What a Gateway refuses without asking an Interpreter: unknown keys, clients over their limits, new requests while
it drains, and requests like one that was refused for want of room a moment ago. Each Gateway replica counts for itself.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from pasta.errors import UserError
from serve.calls.replicas import ReplicaLost
from serve.config import KeySettings, is_loopback
from serve.errors import ApiError, overloaded, rate_limited, unauthorized, unavailable
from serve.keys import KeyEntry, KeyRing
from serve.wire import Order, Refused, UpdateBatches

#: How long a written response takes at most to pass the proxy.
_PROXY_DELAY_S = 0.3
#: How long a refusal stays cached: no longer than a refused client is told to wait. Meanwhile room may come free
#: without this Gateway seeing it: another Gateway's request ends, or one whose client has just left.
_CACHED_S = 1.0


@dataclass(slots=True)
class _Use:
    """A key's token bucket (``left`` requests as of ``at``), and how many of its requests are running."""

    left: float
    at: float
    running: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request: the key's name and its limits. The name is ``None`` where the service has no keys."""

    name: str | None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None


#: Headers that proxies, tunnels and content networks add: the client behind one may be anybody.
_PROXY_HEADERS = (
    *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port"),
    *("x-forwarded-server", "x-forwarded-by", "x-forwarded-prefix", "x-forwarded-scheme", "x-forwarded-ssl"),
    *("x-original-forwarded-for", "x-original-host", "x-real-ip", "x-client-ip", "x-cluster-client-ip"),
    *("x-envoy-external-address", "x-envoy-original-path", "x-arr-log-id", "x-proxyuser-ip"),
    *("cf-connecting-ip", "cf-connecting-ipv6", "cf-ray", "cf-visitor", "cdn-loop", "true-client-ip"),
    *("fastly-client-ip", "fly-client-ip", "x-amz-cf-id", "x-azure-clientip"),
    *("x-appengine-user-ip", "via"),
)


def _not_from_here(headers: Mapping[str, str], peer: str | None, origins: Collection[str]) -> str:
    """Say why a request may come from somebody who is not on this machine; empty if it does not.

    A browser on this machine sends what pages of other origins ask it to: their own Origin tells them apart, and where
    a name of theirs resolves to this machine (DNS rebinding), the Host. Those of ``origins`` are welcome.
    """
    if not is_loopback(peer):
        return "the request comes from another one"
    if found := next((name for name in _PROXY_HEADERS if name in headers), None):
        return f"the request has passed a proxy (it has the header {found})"
    host = headers.get("host", "").lower()
    if host and not is_loopback(_hostname(host)):
        return "its Host header names another one"
    if headers.get("origin", f"http://{host}").lower() not in (f"http://{host}", f"https://{host}", *origins):
        return "its Origin header names another site"
    return ""


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname if "@" not in host else None
    except ValueError:  # half an IPv6 address
        return None


class Guard:
    """Authenticates clients by API key, and enforces their rate and concurrency limits.

    Of several ``gateways`` each grants its share of a limit, and one request at least. Without keys, web pages of
    ``origins`` are answered as programs on this machine are.
    """

    def __init__(
        self,
        settings: KeySettings,
        gateways: int = 1,
        clock: Callable[[], float] = time.monotonic,
        origins: Collection[str] = (),
    ) -> None:
        self._origins = frozenset(origins)
        self._settings, self._gateways, self._clock = settings, gateways, clock
        self._ring = None if settings.path is None else KeyRing(settings.path)
        self._uses: dict[str, _Use] = {}

    def client(self, headers: Mapping[str, str], peer: str | None) -> Client:
        """The client that sends these headers from the address ``peer``. Raises ``ApiError`` 401, 403, or 503 if the
        keys cannot be read."""
        if self._ring is None:
            if why := _not_from_here(headers, peer, self._origins):
                raise ApiError(
                    f"This service has no API keys and answers only the machine that it runs on; {why}.",
                    status=403,
                    code="no_keys_configured",
                )
            return Client(None)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise unauthorized("You didn't provide an API key; send it as Authorization: Bearer YOUR_KEY.")
        try:
            found = self._ring.find(key.strip())
        except UserError as error:
            raise unavailable(str(error)) from None
        if found is None:
            raise unauthorized("Incorrect API key provided.")
        name, entry = found
        return Client(name, *self._limits(entry))

    def _limits(self, entry: KeyEntry) -> tuple[int | None, int | None]:
        return (
            entry.requests_per_minute or self._settings.requests_per_minute,
            entry.max_concurrent or self._settings.max_concurrent,
        )

    def count(self, client: Client) -> None:
        """Count a request against the client's rate. Raises ``ApiError`` 429 if it has used that up.

        A token bucket: a key may use its whole minute at once, and then regains requests at its rate.
        """
        rate = client.requests_per_minute
        if client.name is None or rate is None:
            return
        use, now = self._use(client), self._clock()
        use.left = min(self._full(client), use.left + (now - use.at) * rate / self._gateways / 60)
        use.at = now
        if use.left < 1:
            wait = math.ceil((1 - use.left) * 60 * self._gateways / rate)
            raise rate_limited(
                f"Rate limit reached for this key: {rate} requests a minute. Try again in {wait} s.", wait
            )
        use.left -= 1

    @contextmanager
    def running(self, client: Client) -> Iterator[None]:
        """Count a request as running for the block. Raises ``ApiError`` 429 if the client has too many."""
        if client.name is None:
            yield
            return
        use, most = self._use(client), client.max_concurrent
        if most is not None and use.running >= math.ceil(most / self._gateways):
            raise rate_limited(
                f"This key has {use.running} requests running, and may have {most}; try again later.", 1
            )
        use.running += 1
        try:
            yield
        finally:
            use.running -= 1

    def _use(self, client: Client) -> _Use:
        assert client.name is not None
        return self._uses.setdefault(client.name, _Use(self._full(client), self._clock()))

    def _full(self, client: Client) -> float:
        """The most requests that a key can have left."""
        return max(1.0, (client.requests_per_minute or 0) / self._gateways)


class OpenRequests:
    """Counts the open requests of one Gateway: it takes ``most`` at a time, and finishes them before it stops.

    Ray Serve would queue the rest without bound, and health checks behind them. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self.draining = False
        #: The time of the event loop from when on nothing is answered any more.
        self.closes_at = math.inf
        self._most = most
        self._open = 0
        self._ended = asyncio.Event()

    def check(self) -> None:
        """Raise ``ApiError`` 503 while the Gateway drains: the client retries, on another replica or later."""
        if self.draining:
            raise unavailable("The service is shutting down; send the request again.", retry_after_s=1)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as open for the block. Raises as :meth:`check` does, and ``ApiError`` 429 if no place is
        free."""
        self.check()
        if self._open >= self._most:
            raise overloaded()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._ended.set()

    async def drain(self, within_s: float) -> None:
        """Refuse new requests from now on, and return when the last response has passed the proxy. Answers that are not
        whole after ``within_s`` seconds end with an error (``answers.checked``)."""
        self.draining = True
        self.closes_at = asyncio.get_running_loop().time() + within_s
        while self._open:
            self._ended.clear()
            await self._ended.wait()
        await asyncio.sleep(_PROXY_DELAY_S)


#: All that admission looks at before it has encoded the prompts: model, ``max_tokens``, number of choices.
_Shape = tuple[str, int | None, int]


class _Cached(NamedTuple):
    refused: Refused
    until: float


class NoRoomCache:
    """Caches "no room" refusals, so that the Gateway sends 429 itself.

    Refusing must be cheapest under overload, and asking an Interpreter costs as much again as reading the request. A
    refusal holds for all requests of its shape at the Interpreter that gave it, until some request ends. Where there
    are several Interpreters (``known``), a request is refused only when each of them has refused its shape.
    """

    def __init__(
        self, known: Callable[[], frozenset[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known, self._clock = known, clock
        self._cached: dict[tuple[str, _Shape], _Cached] = {}
        self._ends = 0

    async def ask(self, order: Order, stream: Callable[[str | None], UpdateBatches]) -> UpdateBatches:
        """The updates for an order, or a cached refusal; ``stream`` asks an Interpreter, ``None`` any of them."""
        shape = order.model, order.max_tokens, order.num_choices
        refused: list[Refused] = []
        asked: set[str] = set()
        while True:
            left, refusals = self._left(shape, asked)
            if (refusals or refused) and not left:
                yield [min(refusals + refused, key=lambda each: each.retry_after_s or 0)]
                return
            # Serve knows who has the least to do; after a refusal, whoever has not refused yet is asked.
            chosen = random.choice(sorted(left)) if refusals or refused else None
            answer, begun = self._ask(shape, stream, chosen), False
            async with aclosing(answer) as batches:
                try:
                    async for batch in batches:
                        last = batch[-1]
                        if isinstance(last, Refused) and last.full and len(self._known()) > 1:
                            refused.append(last)
                            asked.add(last.by)
                            break
                        begun = True
                        yield batch
                    else:
                        return
                except ReplicaLost:
                    if begun or chosen is None or asked >= self._known():
                        raise
            if chosen is not None:
                asked.add(chosen)

    def _left(self, shape: _Shape, asked: set[str]) -> tuple[frozenset[str], list[Refused]]:
        """The Interpreters that may have room, and the cached refusals of the others."""
        now = self._clock()
        self._cached = {key: cached for key, cached in self._cached.items() if now < cached.until}
        known = self._known()
        cached = {by: each.refused for (by, of), each in self._cached.items() if of == shape}
        refusals = [refused for by, refused in cached.items() if by in known or len(known) <= 1]
        return (frozenset() if len(known) <= 1 else known) - cached.keys() - asked, refusals

    async def _ask(
        self, shape: _Shape, stream: Callable[[str | None], UpdateBatches], interpreter: str | None
    ) -> UpdateBatches:
        ends, had_room = self._ends, True
        try:
            async with aclosing(stream(interpreter)) as batches:
                async for batch in batches:
                    last = batch[-1]
                    if isinstance(last, Refused) and last.no_room:
                        had_room = False
                        if self._ends == ends:  # else it may be older than the room that came free
                            self._cached[last.by, shape] = _Cached(last, self._clock() + _CACHED_S)
                    yield batch
        finally:
            if had_room:
                self._ends += 1
                self._cached.clear()
