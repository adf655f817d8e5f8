"""Admission control: refuses requests beyond a budget of tokens at once, instead of queueing them for long.

Until it ends, a request holds the most tokens that it may need: its prompt and the longest answer it asks for, for each
of its choices. By that number a request is short or long, and neither kind may hold more than a part of the budget: so
many long requests leave room for short ones, and the other way round.

A refusal says when to retry: when the missing tokens will be free at the recent rate at which requests release theirs.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from serve.config import AdmissionSettings
from serve.observe.metrics import Length

#: The longest Retry-After, whatever the rate.
MAX_RETRY_AFTER_S = 60
#: Time constant of the rate, in seconds with requests running: tokens released that long ago count 1/e.
_MEMORY_S = 20.0


class Overloaded(Exception):
    """There is no room now; retry after ``retry_after_s``."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"no room; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooLarge(Exception):
    """A request of so many ``tokens`` never has room; ``most`` is the largest that has."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"{tokens} tokens, but at most {most}")
        self.tokens, self.most = tokens, most


class Admission:
    """The budget of one Interpreter, and the tokens that requests hold of it."""

    def __init__(
        self,
        settings: AdmissionSettings,
        budget_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._rate = _ReleaseRate(clock)
        self.budget_tokens = budget_tokens
        self.most_of_one_kind = int(budget_tokens * settings.most_of_one_kind)
        self.held: dict[Length, int] = {"short": 0, "long": 0}

    @contextmanager
    def hold(self, tokens: int) -> Iterator["Held"]:
        """Hold ``tokens`` of the budget for the block. Raises :class:`Overloaded` or :class:`TooLarge`."""
        held = Held(self)
        held.resize(tokens)
        try:
            yield held
        finally:
            self._rate.note(held.tokens, busy=True)
            self.replace(held.tokens, 0)

    def replace(self, before: int, tokens: int) -> None:
        """Exchange ``before`` held tokens for ``tokens``. Raises as :meth:`hold` does, and then changes nothing."""
        self._rate.note(0, busy=any(self.held.values()))
        self.held[self._kind(before)] -= before
        try:
            self._check(tokens)
        except (Overloaded, TooLarge):
            self.held[self._kind(before)] += before
            raise
        self.held[self._kind(tokens)] += tokens

    def _kind(self, tokens: int) -> Length:
        return "short" if tokens <= self._settings.short_tokens else "long"

    def _check(self, tokens: int) -> None:
        if tokens > self.most_of_one_kind:
            raise TooLarge(tokens, self.most_of_one_kind)
        of_kind, of_all = self.held[self._kind(tokens)], sum(self.held.values())
        lacking = tokens + max(of_kind - self.most_of_one_kind, of_all - self.budget_tokens)
        if lacking > 0:
            raise Overloaded(self._retry_after_s(lacking))

    def _retry_after_s(self, lacking: int) -> int:
        """Seconds until so many tokens will be free at the recent rate; at least the configured ones."""
        seconds = lacking / self._rate.rate if self._rate.rate else 0.0
        return max(self._settings.retry_after_s, min(math.ceil(seconds), MAX_RETRY_AFTER_S))


class Held:
    """The tokens that one request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.tokens = 0

    def resize(self, tokens: int) -> None:
        """Hold ``tokens`` instead. Raises :class:`Overloaded` or :class:`TooLarge`, and then changes nothing."""
        self._admission.replace(self.tokens, tokens)
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
