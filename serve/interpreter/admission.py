"""How much the service takes on at once, in tokens: beyond it a request is refused at once, not queued for long.

A request holds what it may grow to (its prompt and the longest answer it asks for, for each of its choices) until
it ends. Requests are short or long by that figure, and neither kind may hold more than a part of the budget: however
many long requests there are, short ones find room, and the other way round.

Who is refused is told when to ask again: when what it lacks will have come free at the pace at which requests have
ended of late.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from serve.config import AdmissionSettings

Kind = Literal["short", "long"]
#: Nobody is sent away for longer, whatever the pace.
MAX_RETRY_AFTER_S = 60
#: What came free so long ago (in seconds with something to do) counts a third of what comes free now.
_MEMORY_S = 20.0


class Overloaded(Exception):
    """There is no room now; ``retry_after_s`` says when to ask again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"no room; ask again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooLarge(Exception):
    """There never is room for so many ``tokens``; ``most`` says for how many there is."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"{tokens} tokens, but at most {most}")
        self.tokens, self.most = tokens, most


class Admission:
    """The budget of one Interpreter."""

    def __init__(
        self,
        settings: AdmissionSettings,
        budget_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._pace = _Pace(clock)
        self.budget_tokens = budget_tokens
        self.most_of_one_kind = int(budget_tokens * settings.most_of_one_kind)
        self.held: dict[Kind, int] = {"short": 0, "long": 0}

    @contextmanager
    def hold(self, tokens: int) -> Iterator["Held"]:
        """Hold ``tokens`` of the budget. Raises :class:`Overloaded` or :class:`TooLarge`, before anything is held."""
        held = Held(self)
        held.resize(tokens)
        try:
            yield held
        finally:
            self._pace.note(held.tokens, busy=True)
            self.replace(held.tokens, 0)

    def replace(self, before: int, tokens: int) -> None:
        """Somebody who holds ``before`` holds ``tokens`` instead, or what was held if that raises."""
        self._pace.note(0, busy=any(self.held.values()))
        self.held[self._kind(before)] -= before
        try:
            self._check(tokens)
        except (Overloaded, TooLarge):
            self.held[self._kind(before)] += before
            raise
        self.held[self._kind(tokens)] += tokens

    def _kind(self, tokens: int) -> Kind:
        return "short" if tokens <= self._settings.short_tokens else "long"

    def _check(self, tokens: int) -> None:
        if tokens > self.most_of_one_kind:
            raise TooLarge(tokens, self.most_of_one_kind)
        of_kind, of_all = self.held[self._kind(tokens)], sum(self.held.values())
        lacking = tokens + max(of_kind - self.most_of_one_kind, of_all - self.budget_tokens)
        if lacking > 0:
            raise Overloaded(self._retry_after_s(lacking))

    def _retry_after_s(self, lacking: int) -> int:
        """Seconds until so many tokens will have come free; at least the configuration's."""
        seconds = lacking / self._pace.rate if self._pace.rate else 0.0
        return max(self._settings.retry_after_s, min(math.ceil(seconds), MAX_RETRY_AFTER_S))


class Held:
    """What a request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.tokens = 0

    def resize(self, tokens: int) -> None:
        """Hold so many instead. Raises :class:`Overloaded` or :class:`TooLarge`, and holds what it held."""
        self._admission.replace(self.tokens, tokens)
        self.tokens = tokens


class _Pace:
    """Tokens that come free in a second with something to do; those of late count most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._freed = self._seconds = 0.0

    def note(self, freed: int, *, busy: bool) -> None:
        """``freed`` tokens come free; whether there has been something to do since the last note."""
        now = self._clock()
        if busy:
            kept = math.exp((self._at - now) / _MEMORY_S)
            self._freed *= kept
            self._seconds = self._seconds * kept + _MEMORY_S * (1 - kept)
        self._at = now
        self._freed += freed

    @property
    def rate(self) -> float:
        """0 as long as nothing is known."""
        return self._freed / self._seconds if self._seconds else 0.0
