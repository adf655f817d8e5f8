"""Repairs annotations that are not quite PASTA-LANG, where there is only one way to.

A teacher copies the answer and puts tags into it. What it must not do is change the answer; what it often does is
change white space, forget to escape a literal tag, write a tag a little differently, or wrap everything in a code
fence. Then the tags' places are still known: they lie between the same characters of the original.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pasta.data.annotate.marks import Mark, apply_marks
from pasta.lang import Document, ParseError, parse, render
from pasta.lang.printer import TAG

Strip = Literal["exact", "whitespace"]
_LENIENT = re.compile(
    r"(?P<open><promise\b(?P<attributes>[^<>]*?)/?>\s*<async\s*>)"
    r"|(?P<close></async\s*>)"
    r"|(?P<sync><sync\s*/?>(?:\s*</sync\s*>)?)"
)
_TOPIC = re.compile(r"""\btopic\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_ESCAPED = re.compile(rf"\\({TAG.pattern})")
_FENCE = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?```\s*\Z", re.DOTALL)


class Unrepairable(ValueError):
    """An annotation that cannot be used; ``code`` says why in a word, the message in full."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Repaired:
    """A document that strips to the answer exactly, and whether the annotation had to be put right for that."""

    document: Document
    repaired: bool


def read_annotation(annotated: str, answer: str, strip: Strip) -> Repaired:
    """Read an annotated answer in text form.

    ``exact`` lets white space differ at both ends only, ``whitespace`` anywhere; the answer's own is put back.
    Raises Unrepairable with code ``differs`` or ``malformed``.
    """
    problem = ""
    try:
        document = parse(annotated)
        if render(document) == answer:
            return Repaired(document, repaired=False)
    except ParseError as error:
        problem = str(error)
    fence = _FENCE.match(annotated)
    candidates = [annotated, fence[1]] if fence else [annotated]
    for candidate in candidates:
        for escaped in (True, False):
            pieces = list(_pieces(candidate, escaped))
            text = "".join(piece for piece in pieces if isinstance(piece, str))
            if _same(text, answer, strip):
                try:
                    return Repaired(apply_marks(answer, list(_project(pieces, answer))), repaired=True)
                except ValueError as error:
                    raise Unrepairable("malformed", str(error)) from None
    text = "".join(piece for piece in _pieces(annotated, True) if isinstance(piece, str))
    if problem and _same(_squeezed(TAG.sub("", text)), _squeezed(TAG.sub("", answer)), "exact"):
        raise Unrepairable("malformed", problem)
    raise Unrepairable("differs", _difference(text, answer))


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: Literal["open", "close", "sync"]
    topic: str = ""


def _pieces(annotated: str, escaped: bool) -> Iterator[str | _Tag]:
    """Text and tags in turn; ``escaped`` takes a backslash before a tag for an escape."""
    done = 0
    for match in _LENIENT.finditer(annotated):
        if escaped and annotated[: match.start()].endswith("\\"):
            continue
        yield _plain(annotated[done : match.start()], escaped)
        done = match.end()
        if match["open"]:
            topic = _TOPIC.search(match["attributes"])
            yield _Tag("open", (topic[1] or topic[2] or "") if topic else "")
        else:
            yield _Tag("close" if match["close"] else "sync")
    yield _plain(annotated[done:], escaped)


def _plain(text: str, escaped: bool) -> str:
    return _ESCAPED.sub(r"\1", text) if escaped else text


def _same(text: str, answer: str, strip: Strip) -> bool:
    if strip == "exact":
        return text.strip() == answer.strip()
    return _squeezed(text) == _squeezed(answer)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _project(pieces: Sequence[str | _Tag], answer: str) -> Iterator[Mark]:
    """Marks at the places of the answer that correspond to the tags' places in the annotation's text.

    Between two neighbouring characters that are no white space, the annotation's white space decides how much of the
    answer's own goes before each tag, if it is the same; otherwise all of it goes into what follows a closing tag
    and before an opening one.
    """
    solid = [index for index, character in enumerate(answer) if not character.isspace()]
    seen = 0
    gap: list[str | _Tag] = []
    for piece in [*pieces, None]:
        if piece is None or isinstance(piece, _Tag):
            gap += [] if piece is None else [piece]
            continue
        head = piece[: len(piece) - len(piece.lstrip())]
        gap.append(head)
        if len(head) == len(piece):
            continue
        yield from _place(gap, answer, solid, seen)
        seen += len(_squeezed(piece))
        gap = [piece[len(piece.rstrip()) :]]
    yield from _place(gap, answer, solid, seen)


def _place(gap: Sequence[str | _Tag], answer: str, solid: Sequence[int], seen: int) -> Iterator[Mark]:
    """Marks for the tags between solid characters ``seen - 1`` and ``seen`` of the answer."""
    begin = solid[seen - 1] + 1 if seen else 0
    end = solid[seen] if seen < len(solid) else len(answer)
    same = "".join(piece for piece in gap if isinstance(piece, str)) == answer[begin:end]
    at = begin
    for piece in gap:
        if isinstance(piece, str):
            at += len(piece) if same else 0
            continue
        if not same and piece.kind == "open":
            at = end
        yield Mark(at, piece.kind, piece.topic)


def _difference(text: str, answer: str) -> str:
    ours, theirs = answer.split(), text.split()
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    at = min(len(ours), len(theirs)) if at is None else at
    expected, got = (" ".join(words[at : at + 6]) or "the end" for words in (ours, theirs))
    return f"without its tags it is not the answer: at word {at + 1} expected {expected!r}, got {got!r}"
