"""One response over its Decoders: its home's stream, the streams of chunks decoded elsewhere, and what to do when
one of them is lost.

A *part* is what one Decoder holds of a response: the main thread with the chunks that stay with it, or a chunk that
left. Its owner is the part around it, which takes the chunk back when it is done (absorb) or half done (adopt). The
session has every token so far, so a part can go on anywhere.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ray.exceptions import RayActorError

from pasta.interpreter import Limits
from pasta.placement import POLICIES
from serve.calls.replicas import ReplicaLost
from serve.calls.roster import Superseded
from serve.interpreter.dispatch import COUNTERS, Dispatcher
from serve.interpreter.session import Session
from serve.observe import logs
from serve.observe.trace import Mark
from serve.wire import Decoded, DecodeOrder, Decoding, Lent, Path, Progress, Refused, TokenItem

#: A response that has lost more replicas is given up: it may be what kills them.
MAX_LOSSES = 2
logger = logging.getLogger("ray.serve")


@dataclass(eq=False)
class Part:
    """What one replica decodes. ``started`` when it has taken it, ``ended`` when it has said how that ended; ``offset``
    on the response's clock."""

    path: Path
    replica: str
    order: DecodeOrder
    offset: float
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    reader: asyncio.Task[Any] | None = None


Item = Decoding | BaseException
Result = Progress | Decoded | Refused


class Run:
    """One response, from its order to its end."""

    def __init__(self, dispatcher: Dispatcher, order: DecodeOrder, session: Session) -> None:
        self.parts: dict[Path, Part] = {}
        self._dispatcher, self._order, self._session = dispatcher, order, session
        self._policy = POLICIES[order.placement]
        self._inbox: asyncio.Queue[tuple[Part, Item]] = asyncio.Queue()
        self._lost_on: set[str] = set()
        self._num_losses = 0
        self._attempts = itertools.count()
        self._begun = perf_counter()
        self._first_token_s: float | None = None
        self._figures = dict.fromkeys(COUNTERS, 0)
        #: What was done with its threads, for its trace.
        self.marks: list[Mark] = []

    def figures(self) -> dict[str, Any]:
        """What placement did, for the answer's extension object."""
        return {"placement": self._order.placement, **self._figures}

    def lanes(self) -> list[str]:
        """The replica of each thread that decodes now."""
        if not self.parts:
            return []
        return [self._holder(path).replica for path in self._session.running() if () in self.parts]

    def lose(self, part: Part, error: ReplicaLost) -> None:
        """Go on as if the part's stream had ended with ``error``."""
        self._inbox.put_nowait((part, error))

    async def updates(self) -> AsyncGenerator[list[Result], None]:
        """In lists what there is at once: progress as tokens come, ``Decoded`` (or only ``Refused``) last; leaving it
        ends every part."""
        self._dispatcher.runs.add(self)
        try:
            await self._start_main()
            over = False
            while not over:
                came = [await self._inbox.get()]
                while not self._inbox.empty():
                    came.append(self._inbox.get_nowait())
                results: list[Result] = []
                for part, item in came:
                    if results and isinstance(item, BaseException):  # going on elsewhere takes a while
                        yield results
                        results = []
                    if (result := await self._take(part, item)) is not None:
                        results.append(result)
                    if over := isinstance(result, Decoded | Refused):
                        break
                if results:
                    yield results
        finally:
            self._dispatcher.runs.discard(self)
            for part in list(self.parts.values()):
                self._close(part)

    async def _take(self, part: Part, item: Item) -> Result | None:
        """What an item of a part means for the response: its end if it is ``Decoded`` or ``Refused``."""
        if self.parts.get(part.path) is not part:
            return None  # it was replaced, or handed back, meanwhile
        if isinstance(item, list):
            return self._feed(part, item)
        if isinstance(item, Lent):
            self._place(part, item)
        elif isinstance(item, Decoded) and part.path == ():
            return self._decoded(item)
        elif isinstance(item, Refused) and part.path == ():
            return item
        elif isinstance(item, Decoded) and item.finish_reason != "short":
            self._bring_back(part)
        elif isinstance(item, Decoded | Refused):
            self._hand_back(part)
        elif self._session.ended:
            return self._decoded(Decoded(self._session.finish_reason, 0, 0.0, 0.0, 0.0))
        else:
            await self._lost(part, item)
        return None

    # -- parts -----------------------------------------------------------------------------------------

    async def _start_main(self) -> None:
        replica = await self._dispatcher.home(self._order.prompt_ids, self._lost_on)
        if not self._figures["redispatches"]:
            self._begun = perf_counter()  # the response's clock is its first home's
        self._start((), replica, self._order)

    def _start(self, path: Path, replica: str, order: DecodeOrder) -> None:
        tokens, lent = self._held_by(path)
        attempt = f"{self._order.request_id}/{'.'.join(map(str, path))}/{next(self._attempts)}"
        order = dataclasses.replace(order, request_id=attempt, tokens=tokens, lent=lent)
        part = Part(path, replica, order, perf_counter() - self._begun)
        self.parts[path] = part
        part.reader = self._dispatcher.spawn(self._read(part))

    async def _read(self, part: Part) -> None:
        broken: BaseException = ReplicaLost("its stream ended early")
        try:
            stream = self._dispatcher.decoders.stream("decode", part.order, replica=part.replica)
            async with aclosing(stream) as messages:
                async for message in messages:
                    part.started.set()
                    for item in message:
                        part.ended |= isinstance(item, Decoded | Refused)
                        self._inbox.put_nowait((part, item))
        except Exception as error:
            broken = error
        if not part.ended:
            self._inbox.put_nowait((part, broken))

    def _close(self, part: Part) -> None:
        """End a part, wherever it stands."""
        if self.parts.get(part.path) is part:
            del self.parts[part.path]
        part.started.set()  # whoever waits to tell it something need not any longer
        if part.reader is not None and not part.ended and not part.reader.done():
            part.reader.cancel()
            # Leaving the stream does not always reach the other side by itself.
            cancel = self._dispatcher.tell(part.replica, "cancel", self._order.model, part.order.request_id)
            self._dispatcher.spawn(cancel)

    def _holder(self, path: Path) -> Part:
        """The part that decodes a thread."""
        while path not in self.parts:
            path = path[:-1]
        return self.parts[path]

    def _held_by(self, path: Path) -> tuple[tuple[tuple[Path, int], ...], dict[Path, Limits]]:
        """The tokens so far of the part at ``path``, and what the parts right below it were lent."""
        below = [p for p in self.parts if len(p) > len(path) and p[: len(path)] == path]
        lent = {
            p: self.parts[p].order.limits
            for p in below
            if not any(q != p and p[: len(q)] == q for q in below)
        }
        tokens = tuple(
            (p, token)
            for p, token in self._session.tokens
            if p[: len(path)] == path and not any(p[: len(q)] == q for q in lent)
        )
        return tokens, lent

    # -- what comes ------------------------------------------------------------------------------------

    def _feed(self, part: Part, items: list[TokenItem]) -> Progress:
        if items and self._first_token_s is None:
            self._first_token_s = perf_counter() - self._begun
        timed: list[TokenItem] = [(item[0], item[1], item[2] + part.offset, *item[3:]) for item in items]
        return self._session.feed(timed)

    def _place(self, part: Part, lent: Lent) -> None:
        """A chunk has left its part: find it a place."""
        loads = self._dispatcher.loads(self._lost_on)
        replica = self._policy.choose(part.replica, loads)
        order = dataclasses.replace(
            self._order,
            prompt_ids=[],
            snapshot=self._session.snapshot(lent.path),
            limits=lent.limits,
            stop=(),  # a stop string is one of the whole text, which the home reads
        )
        if replica == part.replica:
            self._adopt(part, lent.path)
            return
        self._count("spills", lent.path, replica)
        self._start(lent.path, replica, order)

    def _bring_back(self, part: Part) -> None:
        """A chunk is done: its owner takes it in."""
        ids = self._session.chunk_ids(part.path)
        self._close(part)
        owner = self._holder(part.path)
        self._to_owner(owner, "absorb", part.path, ids)

    def _hand_back(self, part: Part) -> None:
        """A chunk cannot go on where it is: its owner goes on with it."""
        self._count("returns", part.path)
        self._close(part)
        self._adopt(self._holder(part.path), part.path)

    def _adopt(self, owner: Part, path: Path) -> None:
        tokens, lent = self._held_by(path)
        self._to_owner(owner, "adopt", path, tokens, lent)

    def _to_owner(self, owner: Part, method: str, *args: Any) -> None:
        async def send() -> None:
            await owner.started.wait()
            if self.parts.get(owner.path) is not owner:
                return  # what goes on in its place has this already
            try:
                arguments = (self._order.model, owner.order.request_id, *args)
                await self._dispatcher.decoders.call(method, *arguments, replica=owner.replica)
            except Exception as error:
                self._inbox.put_nowait((owner, error))

        self._dispatcher.spawn(send())

    async def _lost(self, part: Part, error: BaseException) -> None:
        """The replica of a part is gone: the part goes on elsewhere. Raises what is no such loss."""
        if not isinstance(error, RayActorError | ReplicaLost):
            raise error
        self._close(part)
        # Not each of its parts: many chunks may be on one replica, and they are not lost to the response.
        if part.path == () or part.replica not in self._lost_on:
            self._num_losses += 1
        self._lost_on.add(part.replica)
        self._count("redispatches", part.path)
        logs.log(
            logger,
            "replica lost",
            self._order.http_request_id,
            logging.WARNING,
            replica=part.replica,
            attempt=part.order.request_id,
            reason=type(error).__name__,
        )
        if self._num_losses > MAX_LOSSES:
            raise error
        if part.path == ():
            try:
                await self._start_main()
            except Superseded:  # the answer has begun: no other model can go on with it
                raise error from None
        else:
            self._adopt(self._holder(part.path), part.path)

    def _count(self, what: str, path: Path, replica: str = "") -> None:
        self._figures[what] += 1
        self._dispatcher.count(what)
        self.marks.append(Mark(path, COUNTERS[what], perf_counter() - self._begun, replica))

    def _decoded(self, home: Decoded) -> Decoded:
        """The home's own figures, unless the response has had several homes: then times are the Interpreter's."""
        if not self._figures["redispatches"]:
            return home
        return dataclasses.replace(
            home, queue_s=0.0, ttft_s=self._first_token_s or 0.0, total_s=perf_counter() - self._begun
        )
