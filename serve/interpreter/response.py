"""One response over its Decoders: the stream of its home, the streams of chunks decoded elsewhere, and what happens
when a replica is lost.

An *attempt* is what one Decoder decodes of a response: the main thread with the chunks that stay with it, or a chunk
that was sent elsewhere. Its owner is the attempt that decodes the chunk's parent: the owner takes the chunk back when
it is finished (absorb) or unfinished (adopt). The session has every token so far, so an attempt can continue anywhere.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter, time
from typing import Any

from ray.exceptions import RayActorError

from pasta.interpreter import Limits
from pasta.placement import POLICIES
from serve.calls.replicas import ReplicaLost, Superseded
from serve.interpreter.dispatch import COUNTERS, Attempt, Dispatcher, Kind
from serve.interpreter.session import Session
from serve.observe import logs
from serve.observe.trace import PlacementEvent
from serve.wire import Decoded, DecodeOrder, Decoding, Delta, Lent, Path, Refused, TokenItem

#: Items that a response buffers from all of its streams. If the client reads more slowly, the streams wait, and so do
#: their Decoders.
MOST_UNREAD = 256
#: A response that has lost more replicas than this is given up: it may be the reason why they die.
MAX_LOSSES = 2
logger = logging.getLogger("ray.serve")

AttemptItem = Decoding | BaseException
ResponseItem = Delta | Decoded | Refused


class DistributedResponse:
    """Decodes one response on one or several replicas, from its order to its end."""

    def __init__(self, dispatcher: Dispatcher, order: DecodeOrder, session: Session) -> None:
        self.attempts: dict[Path, Attempt] = {}
        self.prefixes = dispatcher.prefixes(order)
        self._dispatcher, self._order, self._session = dispatcher, order, session
        self._policy = POLICIES[order.placement]
        self._inbox: asyncio.Queue[tuple[Attempt, AttemptItem]] = asyncio.Queue()
        self._room = asyncio.Event()
        self._lost_on: set[str] = set()
        self._num_losses = 0
        self._attempt_numbers = itertools.count()
        self._begun = perf_counter()
        self._first_token_s: float | None = None
        #: The kind of the Decoder that it has begun on: one of another kind would go on with other text.
        self._kind: Kind | None = None
        self._counts = dict.fromkeys(COUNTERS, 0)
        #: What placement did with its threads, for its trace.
        self.placement_events: list[PlacementEvent] = []

    def placement(self) -> dict[str, Any]:
        """The placement policy and its counts, for the answer's extension object."""
        return {"placement": self._order.placement, **self._counts}

    def lanes(self) -> list[str]:
        """The replica of each thread that decodes now."""
        if not self.attempts:
            return []
        return [self._holder(path).replica for path in self._session.running() if () in self.attempts]

    def lose(self, attempt: Attempt, error: ReplicaLost) -> None:
        """Go on as if the attempt's stream had ended with ``error``."""
        self._inbox.put_nowait((attempt, error))

    async def updates(self) -> AsyncGenerator[list[ResponseItem], None]:
        """Yield a list of all that has arrived at once: ``Delta`` as tokens come, last ``Decoded`` (or only
        ``Refused``). Leaving the iteration early ends every attempt."""
        self._dispatcher.lanes.opened(self)
        try:
            await self._start_main()
            over = False
            while not over:
                came = [await self._inbox.get()]
                while not self._inbox.empty():
                    came.append(self._inbox.get_nowait())
                self._room.set()
                results: list[ResponseItem] = []
                for attempt, item in came:
                    if results and isinstance(item, BaseException):  # continuing elsewhere takes a while
                        yield results
                        results = []
                    if (result := await self._handle(attempt, item)) is not None:
                        results.append(result)
                    if over := isinstance(result, Decoded | Refused):
                        break
                if results:
                    yield results
        finally:
            self._dispatcher.lanes.closed(self)
            self._room.set()
            for attempt in list(self.attempts.values()):
                self._close(attempt)

    async def _handle(self, attempt: Attempt, item: AttemptItem) -> ResponseItem | None:
        """Act on an item of an attempt's stream; returns the messages for the client, if any."""
        if self.attempts.get(attempt.path) is not attempt:
            return None  # another attempt has replaced it meanwhile
        if isinstance(item, list):
            return self._feed(attempt, item)
        if isinstance(item, Lent):
            self._place(attempt, item)
        elif isinstance(item, Decoded) and attempt.path == ():
            if item.told is not None:
                self._dispatcher.hear(attempt.replica, item.told)
            return self._decoded(item)
        elif isinstance(item, Refused) and attempt.path == ():
            return item
        elif isinstance(item, Decoded) and item.finish_reason != "short":
            self._bring_back(attempt)
        elif isinstance(item, Decoded | Refused):
            self._hand_back(attempt)
        elif self._session.ended and self._order.prompt_logprobs is None:
            return self._decoded(Decoded(self._session.finish_reason, 0, 0.0, 0.0, 0.0))
        elif self._session.ended and attempt.path == ():
            raise item  # no other replica knows how likely the prompt's tokens are
        else:
            await self._lost(attempt, item)
        return None

    # -- attempts --------------------------------------------------------------------------------------

    async def _start_main(self) -> None:
        begun_on = self._kind if self._session.tokens else None
        replica = await self._dispatcher.home(self._order, self.prefixes, self._lost_on, begun_on)
        self._kind = self._dispatcher.kind_of(replica, self._order.model)
        if not self._counts["redispatches"]:
            self._begun = perf_counter()  # the response's clock starts with its first home
        self._start((), replica, self._order)

    def _start(self, path: Path, replica: str, order: DecodeOrder) -> None:
        tokens, lent = self._held_by(path)
        attempt_id = f"{self._order.request_id}/{'.'.join(map(str, path))}/{next(self._attempt_numbers)}"
        order = dataclasses.replace(
            order, request_id=attempt_id, tokens=tokens, lent=lent, interpreter=self._dispatcher.name
        )
        attempt = Attempt(path, replica, order, perf_counter() - self._begun)
        self.attempts[path] = attempt
        self._dispatcher.lanes.changed(self)
        attempt.reader = self._dispatcher.spawn(self._read(attempt))

    async def _read(self, attempt: Attempt) -> None:
        broken: BaseException = ReplicaLost("its stream ended early")
        try:
            stream = self._dispatcher.decoders.stream("decode", attempt.order, replica=attempt.replica)
            async with aclosing(stream) as messages:
                async for message in messages:
                    attempt.started.set()
                    for item in message:
                        attempt.ended |= isinstance(item, Decoded | Refused)
                        self._inbox.put_nowait((attempt, item))
                    if self._inbox.qsize() > MOST_UNREAD:
                        self._room.clear()
                        await self._room.wait()
        except Exception as error:
            broken = error
        if not attempt.ended:
            self._inbox.put_nowait((attempt, broken))

    def _close(self, attempt: Attempt) -> None:
        """End an attempt, whatever its state."""
        if self.attempts.get(attempt.path) is attempt:
            del self.attempts[attempt.path]
            self._dispatcher.lanes.changed(self)
        attempt.started.set()  # release those who wait to send it something
        if attempt.reader is not None and not attempt.ended and not attempt.reader.done():
            attempt.reader.cancel()
            # Ray does not always propagate the cancellation of a stream to the replica.
            cancel = self._dispatcher.notify(
                attempt.replica, "cancel", self._order.model, attempt.order.request_id
            )
            self._dispatcher.spawn(cancel)

    def _holder(self, path: Path) -> Attempt:
        """The attempt that decodes a thread."""
        while path not in self.attempts:
            path = path[:-1]
        return self.attempts[path]

    def _held_by(self, path: Path) -> tuple[tuple[tuple[Path, int], ...], dict[Path, Limits]]:
        """The tokens so far of the attempt at ``path``, and the limits lent to the attempts right below it."""
        below = [p for p in self.attempts if len(p) > len(path) and p[: len(path)] == path]
        lent = {
            p: self.attempts[p].order.limits
            for p in below
            if not any(q != p and p[: len(q)] == q for q in below)
        }
        tokens = tuple(
            (p, token)
            for p, token in self._session.tokens
            if p[: len(path)] == path and not any(p[: len(q)] == q for q in lent)
        )
        return tokens, lent

    # -- messages --------------------------------------------------------------------------------------

    def _feed(self, attempt: Attempt, items: list[TokenItem]) -> Delta:
        if items and self._first_token_s is None:
            self._first_token_s = perf_counter() - self._begun
        timed: list[TokenItem] = [(item[0], item[1], item[2] + attempt.offset, *item[3:]) for item in items]
        delta = self._session.feed(timed)
        if self._session.moved:
            self._dispatcher.lanes.changed(self)
        return delta

    def _place(self, attempt: Attempt, lent: Lent) -> None:
        """Send a chunk that was forked to the replica that the placement policy chooses."""
        loads = self._dispatcher.loads(self._lost_on, self._order.model, self._kind)
        replica = self._policy.choose(attempt.replica, loads)
        order = dataclasses.replace(
            self._order,
            prompt_ids=[],
            snapshot=self._session.snapshot(lent.path),
            limits=lent.limits,
            prompt_logprobs=None,  # its home reports the prompt
        )
        if replica == attempt.replica:
            self._adopt(attempt, lent.path)
            return
        self._count("spills", lent.path, replica)
        self._start(lent.path, replica, order)

    def _bring_back(self, attempt: Attempt) -> None:
        """A chunk is finished: have its owner absorb it."""
        ids = self._session.chunk_ids(attempt.path)
        self._close(attempt)
        owner = self._holder(attempt.path)
        self._to_owner(owner, "absorb", attempt.path, ids)

    def _hand_back(self, attempt: Attempt) -> None:
        """A chunk cannot continue where it is: have its owner adopt it."""
        self._count("returns", attempt.path)
        self._close(attempt)
        self._adopt(self._holder(attempt.path), attempt.path)

    def _adopt(self, owner: Attempt, path: Path) -> None:
        tokens, lent = self._held_by(path)
        self._to_owner(owner, "adopt", path, tokens, lent)

    def _to_owner(self, owner: Attempt, method: str, path: Path, *args: Any) -> None:
        # It knows a chunk inside another one only once it has adopted that one; of two calls, either may arrive first.
        around = [sent for other, sent in owner.sent.items() if path[: len(other)] == other]

        async def send() -> None:
            await asyncio.gather(owner.started.wait(), *around)
            if self.attempts.get(owner.path) is not owner:
                return  # the attempt that replaced it has these tokens already
            try:
                arguments = (self._order.model, owner.order.request_id, path, *args)
                await self._dispatcher.decoders.call(method, *arguments, replica=owner.replica)
            except Exception as error:
                self._inbox.put_nowait((owner, error))

        owner.sent[path] = self._dispatcher.spawn(send())

    async def _lost(self, attempt: Attempt, error: BaseException) -> None:
        """Continue an attempt elsewhere if ``error`` says that its replica is gone; raise any other error."""
        if not isinstance(error, RayActorError | ReplicaLost):
            raise error
        self._close(attempt)
        # Counted once for each replica: it may have decoded many chunks. The response still has all of their tokens.
        if attempt.path == () or attempt.replica not in self._lost_on:
            self._num_losses += 1
        self._lost_on.add(attempt.replica)
        self._count("redispatches", attempt.path)
        logs.log(
            logger,
            "replica lost",
            self._order.http_request_id,
            logging.WARNING,
            replica=attempt.replica,
            attempt=attempt.order.request_id,
            reason=type(error).__name__,
        )
        if self._num_losses > MAX_LOSSES:
            raise error
        if attempt.path == ():
            try:
                await self._start_main()
            except Superseded:  # the answer has begun: another model cannot continue it
                raise error from None
        else:
            self._adopt(self._holder(attempt.path), attempt.path)

    def _count(self, what: str, path: Path, replica: str = "") -> None:
        self._counts[what] += 1
        self._dispatcher.count(what)
        event = PlacementEvent(path, COUNTERS[what], perf_counter() - self._begun, replica)
        self.placement_events.append(event)

    def _decoded(self, home: Decoded) -> Decoded:
        """The home's own times, or the Interpreter's if the response has had several homes."""
        if not self._counts["redispatches"]:
            return home
        total_s = perf_counter() - self._begun
        return dataclasses.replace(
            home,
            queue_s=0.0,
            ttft_s=self._first_token_s or 0.0,
            total_s=total_s,
            submitted_at=time() - total_s,
        )
