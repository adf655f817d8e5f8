"""Annotations as marks at characters of the answer, so that the document strips to the answer by construction."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pasta.lang import Chunk, Document, Item, Sync, Text
from pasta.lang.document import ESTIMATE_STEP, MAX_TOPIC_CHARS

_BANNED = re.compile(r'["<>\s\x00-\x1f]+')
_MARKUP = re.compile(r"[*_`#~|]+|^\s*(?:[-+•]|\(?\w{1,3}[.)])\s+")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese have no spaces between words: this is the length of a few, after
# the number that an item may have.
_UNSPACED = re.compile(
    "(?:[一二三四五六七八九十]{1,3}、)?"
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{1,8}"
)
_TITLE_WORDS = 8
_OPENING_WORDS = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """A chunk begins (``open``), a chunk ends (``close``) or a thread waits (``sync``) before character ``at``."""

    at: int
    kind: Literal["open", "close", "sync"]
    topic: str = ""


def apply_marks(answer: str, marks: Sequence[Mark]) -> Document:
    """The document of an answer with marks in reading order. Estimates are provisional.

    Raises ValueError if chunks are not well nested.
    """
    stack: list[tuple[Mark, list[Item]]] = []
    items: list[Item] = []
    done = 0
    for mark in marks:
        items.append(Text(answer[done : mark.at]))
        done = mark.at
        if mark.kind == "open":
            stack.append((mark, items))
            items = []
        elif mark.kind == "sync":
            items.append(Sync())
        else:
            if not stack:
                raise ValueError(f"</async> without a promise after {answer[max(done - 24, 0) : done]!r}")
            opened, parent = stack.pop()
            topic = to_topic(opened.topic) or opening(answer[opened.at : done]) or "part"
            parent.append(Chunk(topic, ESTIMATE_STEP, tuple(items)))
            items = parent
    if stack:
        raise ValueError(f"the chunk {stack[-1][0].topic!r} is never closed")
    items.append(Text(answer[done:]))
    return Document(tuple(items))


def to_topic(title: str, words: int = _TITLE_WORDS) -> str:
    """A legal topic from a title: its first words without markup; empty if it has none."""
    given = _MARKUP.sub("", _BANNED.sub(" ", title)).split()[:words]
    topic = ""
    for word in given:
        if len(topic) + 1 + len(word) > MAX_TOPIC_CHARS:
            break
        topic = f"{topic} {word}" if topic else word
    return (topic or "".join(given[:1])[:MAX_TOPIC_CHARS]).strip(" .,;:–—-")


def opening(text: str, words: int = _OPENING_WORDS) -> str:
    """A topic for text without a title: its first few words, since they are decoded twice."""
    if unspaced := _UNSPACED.search(text):
        text = text[: unspaced.end()]
    return to_topic(text, words)
