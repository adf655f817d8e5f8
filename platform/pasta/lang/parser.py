"""Parses the text form into documents; errors name the place and what was expected."""

import re

from pasta.errors import UserError
from pasta.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    CLOSE,
    ESTIMATE_STEP,
    MAX_DEPTH,
    MAX_TOPIC_CHARS,
    PROMISE,
    SYNC,
    Chunk,
    Document,
    Item,
    Sync,
    Text,
    is_topic,
    render,
)
from pasta.lang.printer import TAG_WITH_BACKSLASHES

_ESTIMATE = re.compile(r"[1-9][0-9]*")
_MOST_DIGITS = 9
_TOPIC_OPEN = ' topic="'
_ESTIMATE_OPEN = '" tokens="'


class ParseError(UserError):
    """An annotation that is not PASTA-LANG. ``line`` and ``column`` count from 1."""

    def __init__(self, text: str, offset: int, expected: str) -> None:
        self.line = text.count("\n", 0, offset) + 1
        self.column = offset - (text.rfind("\n", 0, offset) + 1) + 1
        self.offset = offset
        self.expected = expected
        found = text[offset : offset + 24]
        self.found = repr(found) if found else "the end"
        super().__init__(f"line {self.line}, column {self.column}: expected {expected}, found {self.found}")


def parse(text: str) -> Document:
    """Parse the text form. Raises :class:`ParseError` at the first place that is not PASTA-LANG."""
    stack: list[
        tuple[str, int, list[Item], int]
    ] = []  # topic, estimate, the parent's items, offset of <promise
    items: list[Item] = []
    at = 0
    while (match := TAG_WITH_BACKSLASHES.search(text, at)) is not None:
        backslashes, tag = len(match[1]), match[2]
        items.append(Text(text[at : match.start()] + "\\" * (backslashes // 2)))
        start = match.start(2)
        if backslashes % 2:
            items.append(Text(tag))
            at = match.end()
        elif tag == PROMISE:
            if len(stack) == MAX_DEPTH:
                raise ParseError(text, start, f"chunks nested at most {MAX_DEPTH} levels deep")
            topic, estimate, at = _parse_promise(text, match.end())
            stack.append((topic, estimate, items, start))
            items = []
        elif tag == ASYNC_CLOSE:
            if not stack:
                raise ParseError(
                    text, start, f"no {ASYNC_CLOSE} outside a chunk (write \\{tag} for literal text)"
                )
            topic, estimate, parent, _ = stack.pop()
            parent.append(Chunk(topic, estimate, tuple(items)))
            items, at = parent, match.end()
        elif tag == SYNC:
            items.append(Sync())
            at = match.end()
        elif tag == ASYNC_OPEN:
            raise ParseError(text, start, f"a promise before {ASYNC_OPEN} (write \\{tag} for literal text)")
        else:
            raise ParseError(text, start, f"an open promise before {CLOSE} (write \\{tag} for literal text)")
    items.append(Text(text[at:]))
    if stack:
        topic, _, _, start = stack[-1]
        line = text.count("\n", 0, start) + 1
        raise ParseError(text, len(text), f"{ASYNC_CLOSE} for the chunk {topic!r} opened in line {line}")
    return Document(tuple(items))


def strip(annotated: str) -> str:
    """Return the original answer of an annotated one in text form. Raises :class:`ParseError`."""
    return render(parse(annotated))


def _parse_promise(text: str, at: int) -> tuple[str, int, int]:
    """Read a promise's attributes from right behind ``<promise`` up to and including ``<async>``."""
    at = _expect(text, at, _TOPIC_OPEN)
    end = text.find('"', at)
    topic = text[at : end if end >= 0 else len(text)]
    if end < 0 or not is_topic(topic):
        wanted = f"a topic of 1 to {MAX_TOPIC_CHARS} characters without quotes, angle brackets or newlines"
        raise ParseError(text, at, f"{wanted}, and a closing quote")
    at = _expect(text, end, _ESTIMATE_OPEN)
    number = _ESTIMATE.match(text, at)
    if number is not None and len(number[0]) > _MOST_DIGITS:
        raise ParseError(text, at, f"a number of at most {_MOST_DIGITS} digits")
    if number is None or int(number[0]) % ESTIMATE_STEP:
        raise ParseError(text, at, f"a positive multiple of {ESTIMATE_STEP}")
    at = _expect(text, number.end(), f'"{CLOSE}')
    return topic, int(number[0]), _expect(text, at, ASYNC_OPEN)


def _expect(text: str, at: int, literal: str) -> int:
    if not text.startswith(literal, at):
        raise ParseError(text, at, repr(literal))
    return at + len(literal)
