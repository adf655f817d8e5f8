"""The document tree of PASTA-LANG.

    document := item*          item  := TEXT | promise chunk | sync
    promise  := "<promise" ' topic="' TOPIC '" tokens="' N '"' "/>"
    chunk    := "<async>" item* "</async>"          sync := "<sync/>"

A promise and the chunk right after it are one node, :class:`Chunk`, so a document cannot hold one
without the other.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

PROMISE, CLOSE, ASYNC_OPEN, ASYNC_CLOSE, SYNC = CONTROL_TOKENS = (
    "<promise",
    "/>",
    "<async>",
    "</async>",
    "<sync/>",
)

MAX_TOPIC_CHARS = 64
ESTIMATE_STEP = 10
#: Deepest nesting of chunks, so that recursion over a document is safe.
MAX_DEPTH = 100
TOO_DEEP = f"chunks are nested too deeply, expected at most {MAX_DEPTH} levels"
_TOPIC = re.compile(rf'[^"<>\r\n]{{1,{MAX_TOPIC_CHARS}}}')


def in_tens(tokens: int) -> int:
    """A length as an estimate: rounded up to a positive multiple of 10."""
    return max(1, -(-tokens // ESTIMATE_STEP)) * ESTIMATE_STEP


def is_topic(text: str) -> bool:
    """Whether ``text`` may stand as a topic: 1–64 characters, no double quote, angle bracket or newline."""
    return _TOPIC.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Text:
    """A run of plain answer text."""

    text: str


@dataclass(frozen=True, slots=True)
class Sync:
    """The point where a thread waits for its outstanding chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A promise and its chunk.

    ``topic`` is a short phrase and ``tokens`` the length estimate N, a positive multiple of 10. ``depth`` is 1 without
    chunks inside. Raises ``ValueError`` when one is out of range.
    """

    topic: str
    tokens: int
    items: tuple["Item", ...]
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_topic(self.topic):
            raise ValueError(
                f"topic {self.topic!r}: expected 1 to {MAX_TOPIC_CHARS} characters without quotes, "
                "angle brackets or newlines"
            )
        if self.tokens <= 0 or self.tokens % ESTIMATE_STEP:
            raise ValueError(f"tokens {self.tokens}: expected a positive multiple of {ESTIMATE_STEP}")
        object.__setattr__(self, "items", _canonical(self.items))
        object.__setattr__(self, "depth", 1 + _depth(self.items))
        if self.depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)


@dataclass(frozen=True, slots=True)
class Document:
    """An annotated answer, in storage order: each chunk stands right after its promise."""

    items: tuple["Item", ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", _canonical(self.items))

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk, nested ones included, in storage order."""
        return _chunks(self.items)

    def depth(self) -> int:
        """Nesting depth of chunks: 0 for plain text."""
        return _depth(self.items)


Item = Text | Chunk | Sync


def render(document: Document) -> str:
    """The answer a user sees: each promise replaced by its chunk's text, syncs removed."""
    return _render(document.items)


def _canonical(items: Iterable[Item]) -> tuple[Item, ...]:
    """Merge neighbouring text runs and drop empty ones, so that equal documents compare equal."""
    merged: list[Item] = []
    for kind, run in itertools.groupby(items, key=type):
        if kind is not Text:
            merged += run
        elif text := "".join(item.text for item in run if isinstance(item, Text)):
            merged.append(Text(text))
    return tuple(merged)


def _render(items: tuple[Item, ...]) -> str:
    parts = []
    for item in items:
        if isinstance(item, Text):
            parts.append(item.text)
        elif isinstance(item, Chunk):
            parts.append(_render(item.items))
    return "".join(parts)


def _chunks(items: tuple[Item, ...]) -> Iterator[Chunk]:
    for item in items:
        if isinstance(item, Chunk):
            yield item
            yield from _chunks(item.items)


def _depth(items: tuple[Item, ...]) -> int:
    return max((item.depth for item in items if isinstance(item, Chunk)), default=0)
