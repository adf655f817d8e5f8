"""Bounds on a response, and the set of tokens that a thread may emit next."""

from dataclasses import dataclass, field, fields
from typing import Literal

from pasta.errors import UserError
from pasta.interpreter.repetition import RepetitionDetection
from pasta.lang.document import MAX_DEPTH
from pasta.lang.grammar import TagGrammar
from pasta.messages import message

#: Most characters of a generated topic token: a topic further from its limit needs no check of each token.
MAX_TOPIC_PIECE = 16
#: The largest of any limit but ``max_depth``.
LARGEST_LIMIT = 1 << 30
Base = Literal["text", "topic", "none"]


@message
class Limits:
    """Bounds on one response. Raises ``UserError`` when one is not an integer from 1 to 2³⁰, or ``max_depth`` is more
    than documents may have (100).

    ``max_tokens`` counts every token of the response, tags included; ``max_chunk_tokens`` one chunk's own
    tokens; ``max_positions`` is the model's context; ``max_depth`` 1 means chunks without chunks inside. A thread that
    repeats itself as ``repetition_detection`` says may only end.
    """

    max_tokens: int = 2048
    max_chunk_tokens: int = 1024
    max_threads: int = 64
    max_depth: int = 4
    max_topic_tokens: int = 24
    max_positions: int = 1 << 30
    repetition_detection: RepetitionDetection = field(default_factory=RepetitionDetection)

    def __post_init__(self) -> None:
        for name in (found.name for found in fields(self) if found.name != "repetition_detection"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name}: {value!r}, expected a positive integer")
            if value > LARGEST_LIMIT:
                raise UserError(f"{name}: {value}, expected at most {LARGEST_LIMIT:,}")
        if self.max_depth > MAX_DEPTH:
            raise UserError(f"max_depth: {self.max_depth}, expected at most {MAX_DEPTH}")


#: For an answer that exists already: only the cache bounds it.
UNBOUNDED = Limits(max_tokens=1 << 30, max_chunk_tokens=1 << 30, max_threads=1 << 20, max_depth=MAX_DEPTH)


class ConstraintError(ValueError):
    """A token that the grammar or a limit does not allow at this place."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The token ids a thread may emit next: a base set and single ids on top of it.

    Base ``text`` is the grammar's text mask; ``topic`` its topic mask up to ``MAX_TOPIC_PIECE`` characters
    a token; ``none`` is empty.
    """

    base: Base
    extra: frozenset[int]

    def permits(self, token: int, grammar: TagGrammar) -> bool:
        """Whether ``token`` is allowed."""
        if token in self.extra:
            return True
        if not 0 <= token < len(grammar.text_mask):
            return False
        if self.base == "text":
            return bool(grammar.text_mask[token])
        if self.base == "topic":
            return bool(grammar.topic_mask[token]) and grammar.topic_chars[token] <= MAX_TOPIC_PIECE
        return False
