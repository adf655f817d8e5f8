"""How much the service takes on at once, in tokens: beyond it a request is refused at once, not queued for long.

A request holds what it may grow to (its prompt and the longest answer it asks for, for each of its choices) until
it ends. Requests are short or long by that figure, and neither kind may hold more than a part of the budget: however
many long requests there are, short ones find room, and the other way round.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from serve.config import AdmissionSettings

Kind = Literal["short", "long"]


class Overloaded(Exception):
    """There is no room now; ``retry_after_s`` says when to ask again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"no room; ask again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooLarge(Exception):
    """There never is room for so many tokens; ``most`` says for how many there is."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} tokens")
        self.most = most


class Admission:
    """The budget of one Interpreter."""

    def __init__(self, settings: AdmissionSettings, budget_tokens: int) -> None:
        self._settings = settings
        self.budget_tokens = budget_tokens
        self.most_of_one_kind = int(budget_tokens * settings.most_of_one_kind)
        self.held: dict[Kind, int] = {"short": 0, "long": 0}

    @contextmanager
    def hold(self, tokens: int) -> Iterator[None]:
        """Hold ``tokens`` of the budget. Raises :class:`Overloaded` or :class:`TooLarge`, before anything is held."""
        kind: Kind = "short" if tokens <= self._settings.short_tokens else "long"
        if tokens > self.most_of_one_kind:
            raise TooLarge(self.most_of_one_kind)
        if (
            self.held[kind] + tokens > self.most_of_one_kind
            or sum(self.held.values()) + tokens > self.budget_tokens
        ):
            raise Overloaded(self._settings.retry_after_s)
        self.held[kind] += tokens
        try:
            yield
        finally:
            self.held[kind] -= tokens
