"""Admission control of one model: bounds the tokens that running requests may need, and lets a few more wait.

Until it ends, a request holds the most tokens that it may need: its prompt and the longest answer it asks for, for each
of its choices. By that number a request is short or long, and neither kind may hold more than a part of the budget: so
many long requests leave room for short ones, and the other way round. The budget follows the Decoders that are there.

A request beyond the budget waits, first in, first out among its kind, if the queue has a place; else it is refused, and
told when to retry: when the missing tokens will be free at the recent rate at which requests release theirs.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from serve.config import AdmissionSettings

#: The kinds of requests that admission distinguishes.
Length = Literal["short", "long"]
#: The longest Retry-After, whatever the rate.
MAX_RETRY_AFTER_S = 60
#: Time constant of the rate, in seconds with requests running: tokens released that long ago count 1/e.
_MEMORY_S = 20.0


class Overloaded(Exception):
    """There is no room now; retry after ``retry_after_s``. ``waited``: the request had a place in the queue."""

    def __init__(self, retry_after_s: int, *, waited: bool = False) -> None:
        super().__init__(f"no room; retry in {retry_after_s} s")
        self.retry_after_s, self.waited = retry_after_s, waited


class TooLarge(Exception):
    """A request of so many ``tokens`` never has room; ``most`` is the largest that has."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"{tokens} tokens, but at most {most}")
        self.tokens, self.most = tokens, most


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request in the queue; ``granted`` is done when it holds its tokens."""

    tokens: int
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """The budget of one model at one Interpreter, the tokens that requests hold of it, and those who wait.

    ``budget`` tells the tokens now; ``full_budget`` are those with every Decoder that the configuration allows, at all
    Interpreters: a request that fits there is taken when nothing else runs, though the budget is smaller now. For one
    event loop.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        budget: Callable[[], int],
        full_budget: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._budget = settings, budget
        self._rate = _ReleaseRate(clock)
        self._largest = int(full_budget * settings.most_of_one_kind)
        self.held: dict[Length, int] = {"short": 0, "long": 0}
        self._waiting: dict[Length, deque[_Waiting]] = {"short": deque(), "long": deque()}

    @property
    def budget_tokens(self) -> int:
        """The budget now."""
        return self._budget()

    @property
    def num_waiting(self) -> dict[Length, int]:
        """The requests that wait, by kind."""
        return {kind: len(waiting) for kind, waiting in self._waiting.items()}

    @asynccontextmanager
    async def hold(self, tokens: int) -> AsyncIterator["HeldTokens"]:
        """Hold ``tokens`` of the budget for the block, which may have to wait for them. Raises :class:`Overloaded` or
        :class:`TooLarge`."""
        held = HeldTokens(self)
        await held.resize(tokens)
        try:
            yield held
        finally:
            self._rate.note(held.tokens, busy=True)
            self.release(held.tokens)

    def release(self, tokens: int) -> None:
        """Return held tokens, and admit who waits for them."""
        self.held[self._kind(tokens)] -= tokens
        self.admit()

    def admit(self) -> None:
        """Admit the waiting requests that have room now. Also called when a Decoder has come."""
        for kind, waiting in self._waiting.items():
            while waiting and self._lacking(waiting[0].tokens) <= 0:
                first = waiting.popleft()
                if first.granted.cancelled():  # its caller gives up, and has not run since
                    continue
                self.held[kind] += first.tokens
                first.granted.set_result(None)

    async def take(self, tokens: int, *, before: int = 0) -> None:
        """Hold ``tokens`` in exchange for the ``before`` that the request holds.

        If there is no room, the request gives back what it held, and waits at the head of the queue. Raises
        :class:`Overloaded`, and the request then holds nothing, or :class:`TooLarge`, which changes nothing.
        """
        self._rate.note(0, busy=any(self.held.values()))
        if tokens > self._largest:
            raise TooLarge(tokens, self._largest)
        waiting = self._waiting[self._kind(tokens)]
        self.held[self._kind(before)] -= before
        if (before or not waiting) and self._lacking(tokens) <= 0:
            self.held[self._kind(tokens)] += tokens
            self.admit()
            return
        queue = self._settings.queue
        if sum(self.num_waiting.values()) >= queue.max_requests:
            raise self._overloaded(tokens)
        mine = _Waiting(tokens)
        if before:
            waiting.appendleft(mine)
        else:
            waiting.append(mine)
        self.admit()
        await self._wait(mine, waiting, queue.max_wait_s)

    async def _wait(self, mine: _Waiting, waiting: deque[_Waiting], max_wait_s: float) -> None:
        try:
            async with asyncio.timeout(max_wait_s):
                await mine.granted
        except BaseException as error:
            if mine in waiting:
                waiting.remove(mine)
                self.admit()  # who stood behind may be smaller
            elif not mine.granted.cancelled():  # admitted at the moment of leaving
                self.release(mine.tokens)
            if isinstance(error, TimeoutError):
                raise self._overloaded(mine.tokens, waited=True) from None
            raise

    def _kind(self, tokens: int) -> Length:
        return "short" if tokens <= self._settings.short_tokens else "long"

    def _lacking(self, tokens: int) -> int:
        """How many tokens must be released before these have room."""
        of_kind, of_all = self.held[self._kind(tokens)], sum(self.held.values())
        if not of_all:
            return 0
        budget = self._budget()
        most_of_one_kind = int(budget * self._settings.most_of_one_kind)
        return tokens + max(of_kind - most_of_one_kind, of_all - budget)

    def _overloaded(self, tokens: int, *, waited: bool = False) -> Overloaded:
        """With the seconds until so many tokens will be free at the recent rate; at least the configured ones."""
        ahead = sum(waiting.tokens for waiting in self._waiting[self._kind(tokens)])
        seconds = (self._lacking(tokens) + ahead) / self._rate.rate if self._rate.rate else 0.0
        least = self._settings.retry_after_s
        return Overloaded(max(least, min(math.ceil(seconds), MAX_RETRY_AFTER_S)), waited=waited)


class HeldTokens:
    """The tokens that one request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.tokens = 0

    async def resize(self, tokens: int) -> None:
        """Hold ``tokens`` instead. Raises as :meth:`Admission.take` does."""
        before, self.tokens = self.tokens, 0
        try:
            await self._admission.take(tokens, before=before)
        except TooLarge:
            self.tokens = before
            raise
        self.tokens = tokens


class _ReleaseRate:
    """Tokens released a second while requests run: a mean with exponential decay."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._freed = self._seconds = 0.0

    def note(self, freed: int, *, busy: bool) -> None:
        """Note ``freed`` tokens; ``busy``: requests were running since the last note."""
        now = self._clock()
        if busy:
            kept = math.exp((self._at - now) / _MEMORY_S)
            self._freed *= kept
            self._seconds = self._seconds * kept + _MEMORY_S * (1 - kept)
        self._at = now
        self._freed += freed

    @property
    def rate(self) -> float:
        """Tokens a second; 0 as long as nothing is known."""
        return self._freed / self._seconds if self._seconds else 0.0
