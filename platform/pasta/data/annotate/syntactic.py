"""Annotates by pattern: list items and paragraphs, whatever their content: APAR's idea at its widest. A baseline.

Items of a list and paragraphs are assumed to be independent. The head of an item (its marker,
and its title up to a colon or in bold) or the first sentence of a paragraph stays with the parent, the rest becomes a
chunk. Nothing ever waits for a chunk unless ``sync`` says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pasta.bounds import check_positive, check_unread
from pasta.data.annotate.annotator import Proposal
from pasta.data.annotate.marks import Mark, apply_marks, opening, to_topic
from pasta.data.instructions import Instruction
from pasta.lang import Document, to_text

_ITEM = re.compile(
    r"(?P<indent>[ \t]*)"
    r"(?:(?P<bullet>[-*+•–])|\(?(?P<number>\d{1,3})[.)]|\(?(?P<letter>[A-Za-z])[.)])"
    r"[ \t]+(?=\S)"
)
_FENCE = re.compile(r"\s*(```|~~~)")
_NO_PROSE = re.compile(r"\s*(#|\||>|-{3,}\s*$|\*{3,}\s*$|={3,}\s*$)")
_BOLD_HEAD = re.compile(r"(\*\*|__)(?P<title>.+?)\1\s*(?:：|[:.–—-]?(?=\s|$))")
# A full-width colon or full stop has its space in it.
_COLON_HEAD = re.compile(r"(?P<title>[^\n:：]{1,80}(?=：)|[^\n:]{2,80}(?=:(?:\s|$)))[:：]")
_SENTENCE_END = re.compile(
    r"""(?<=[^\s.][.!?؟।])["'”’)\]*]*(?=\s+["'“‘(\[*]*(?P<next>[^\W_]))|(?<=[。！？])["'”’)\]*」』）]*"""
)
_MIN_SENTENCE_CHARS = 20
#: One character, in every vocabulary one token.
SHORTEST_TOPIC = "x"


@dataclass(frozen=True, slots=True)
class SyntacticSection:
    """Which patterns become chunks: ``lists`` of at least ``min_items``, ``paragraphs`` of at least two sentences.

    Lists inside items become chunks of chunks down to ``max_depth``. ``head`` says who writes an item's title: the
    ``parent``, as in APAR, or the ``chunk``. An item without a title is a chunk as a whole, or with ``untitled:
    sentence`` its first sentence is its title, as a paragraph's is. ``topics: shortest`` gives all chunks the topic
    ``x``: where the parent writes the titles, they already tell what each chunk is about. ``sync: conclusion`` waits
    for all chunks before a closing paragraph; ``none`` never waits.
    """

    lists: bool = True
    paragraphs: bool = True
    min_items: int = 2
    max_depth: int = 1
    head: Literal["parent", "chunk"] = "parent"
    untitled: Literal["chunk", "sentence"] = "chunk"
    topics: Literal["title", "shortest"] = "title"
    sync: Literal["none", "conclusion"] = "none"

    def __post_init__(self) -> None:
        check_positive(self, "min_items", "max_depth")
        if not (self.lists or self.paragraphs):
            raise ValueError("lists, paragraphs: expected at least one of them to be true")
        if not self.lists:
            check_unread(self, "without lists", "min_items", "max_depth")
        if self.head == "chunk" and (self.untitled == "sentence" or self.topics == "shortest"):
            raise ValueError(
                "untitled: sentence and topics: shortest leave it to the parent to say what a chunk is about; "
                "expected head: parent"
            )


@dataclass(frozen=True, slots=True)
class _Line:
    """Characters ``start`` to ``end`` of the answer, without the newline."""

    start: int
    end: int
    text: str

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


@dataclass(frozen=True, slots=True)
class _Marker:
    """How a line begins that opens a list item; ``width`` is where its text begins."""

    indent: int
    style: str
    number: int
    width: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines ``first`` up to ``last`` (not included): items of a list, or a paragraph."""

    kind: Literal["list", "paragraph"]
    first: int
    last: int
    items: tuple[tuple[int, int], ...] = ()


def propose_syntactic(record: Instruction, options: SyntacticSection) -> Proposal:
    """The annotation by pattern; it strips to its answer by construction."""
    return Proposal(to_text(annotate_text(record.answer, options)))


def annotate_text(answer: str, options: SyntacticSection) -> Document:
    """The annotated answer; estimates are provisional."""
    lines = _lines(answer)
    blocks = _blocks(lines, 0, len(lines), options)
    marks: list[Mark] = []
    paragraphs = sum(block.kind == "paragraph" for block in blocks)
    for index, block in enumerate(blocks):
        if block.kind == "list":
            for item in block.items:
                marks += _item(answer, lines, item, options, depth=1)
            continue
        is_conclusion = index and index == len(blocks) - 1 and block.last == _last_line(lines)
        if is_conclusion and marks and options.sync == "conclusion":
            marks.append(Mark(lines[block.first].start, "sync"))
        elif options.paragraphs and paragraphs > 1:
            marks += _paragraph(answer, lines, block)
    if options.topics == "shortest":
        marks = [replace(mark, topic=SHORTEST_TOPIC) for mark in marks]
    return apply_marks(answer, marks)


def part_starts(answer: str) -> list[int]:
    """The characters at which the parts begin that a reader sees: items of a list and paragraphs.

    Where there are several lists, each list is one part together with the paragraph above it; so are a heading and what
    follows it.
    """
    lines = _lines(answer)
    blocks = _blocks(lines, 0, len(lines), SyntacticSection())
    has_sections = sum(block.kind == "list" for block in blocks) > 1
    starts: list[int] = []
    above: _Block | None = None
    for block in blocks:
        belongs_above = above is not None and (
            (has_sections and block.kind == "list" and above.kind == "paragraph")
            or (above is not blocks[0] and _is_heading(lines, above))
        )
        firsts = [block.first] if has_sections else [first for first, _ in block.items] or [block.first]
        starts += [lines[_heading_line(lines, first)].start for first in firsts[int(belongs_above) :]]
        above = block
    return starts


def is_lead_in(text: str) -> bool:
    """Whether a text is one line of one sentence that is no list item, such as "Here are the facts:"."""
    line = _Line(0, len(text.strip()), text.strip())
    return (
        "\n" not in line.text and _marker(line) is None and _sentence_end(line.text, 0, line.end) == line.end
    )


def _is_heading(lines: Sequence[_Line], block: _Block) -> bool:
    text = lines[block.first].text.strip()
    return block.kind == "paragraph" and block.last == block.first + 1 and text.endswith((":", "**", "__"))


def _heading_line(lines: Sequence[_Line], first: int) -> int:
    """The line of a Markdown heading above line ``first``, or that line itself."""
    at = first
    while at > 0 and (lines[at - 1].is_blank or lines[at - 1].text.lstrip().startswith("#")):
        at -= 1
        first = first if lines[at].is_blank else at
    return first


def _lines(answer: str) -> list[_Line]:
    lines, start = [], 0
    for text in answer.split("\n"):
        lines.append(_Line(start, start + len(text), text))
        start += len(text) + 1
    return lines


def _last_line(lines: Sequence[_Line]) -> int:
    return max((index + 1 for index, line in enumerate(lines) if not line.is_blank), default=0)


def _marker(line: _Line) -> _Marker | None:
    match = _ITEM.match(line.text)
    if match is None:
        return None
    style = match["bullet"] or ("1" if match["number"] else "a")
    number = int(match["number"]) if match["number"] else ord(match["letter"]) if match["letter"] else 0
    return _Marker(len(match["indent"].expandtabs(4)), style, number, match.end())


def _blocks(lines: Sequence[_Line], first: int, last: int, options: SyntacticSection) -> list[_Block]:
    """Lists and paragraphs among lines ``first`` to ``last``; code, tables, quotes and headings are neither."""
    blocks: list[_Block] = []
    at = first
    while at < last:
        line = lines[at]
        if line.is_blank:
            at += 1
        elif _FENCE.match(line.text):
            at = _after_fence(lines, at, last)
        elif _marker(line) is not None:
            items, at = _items(lines, at, last)
            if options.lists and len(items) >= options.min_items:
                blocks.append(_Block("list", items[0][0], items[-1][1], tuple(items)))
        else:
            end = at
            while end < last and not (
                lines[end].is_blank or _marker(lines[end]) or _FENCE.match(lines[end].text)
            ):
                end += 1
            if not _NO_PROSE.match(line.text):
                blocks.append(_Block("paragraph", at, end))
            at = end
    return blocks


def _items(lines: Sequence[_Line], first: int, last: int) -> tuple[list[tuple[int, int]], int]:
    """The items of the list that opens in line ``first``, as ranges of lines, and the line after it."""
    items: list[tuple[int, int]] = []
    opened = at = first
    marker = _marker(lines[first])
    assert marker is not None, "the caller saw it"
    at += 1
    while at < last:
        line = lines[at]
        found = _marker(line)
        if _FENCE.match(line.text) and (_indent(line) > marker.indent or not lines[at - 1].is_blank):
            at = _after_fence(lines, at, last)
            continue
        if found is not None and _is_sibling(marker, found):
            items.append((opened, at))
            opened, marker = at, found
        elif not _belongs(lines, at, last, marker, found):
            break
        at += 1
    items.append((opened, at))
    return [(begin, _trimmed(lines, begin, end)) for begin, end in items], at


def _belongs(lines: Sequence[_Line], at: int, last: int, marker: _Marker, found: _Marker | None) -> bool:
    """Whether a line that opens no sibling still belongs to the item before it."""
    line = lines[at]
    if line.is_blank or _indent(line) > marker.indent:
        return True
    if found is None and not lines[at - 1].is_blank:
        return True  # a paragraph goes on without being indented
    # Answers often do not indent what belongs to "1.": it does if "2." follows, and no other list's "1." before it.
    numbers = (
        following.number
        for following in map(_marker, lines[at:last])
        if following is not None and following.style == "1" and following.indent == marker.indent
    )
    return marker.style == "1" and next(numbers, None) == marker.number + 1


def _is_sibling(marker: _Marker, found: _Marker) -> bool:
    if found.style != marker.style or abs(found.indent - marker.indent) > 1:
        return False
    return marker.style not in ("1", "a") or found.number in (marker.number + 1, marker.number)


def _after_fence(lines: Sequence[_Line], at: int, last: int) -> int:
    closing = next((i for i in range(at + 1, last) if _FENCE.match(lines[i].text)), last - 1)
    return closing + 1


def _trimmed(lines: Sequence[_Line], begin: int, end: int) -> int:
    while end > begin + 1 and lines[end - 1].is_blank:
        end -= 1
    return end


def _indent(line: _Line) -> int:
    text = line.text.expandtabs(4)
    return len(text) - len(text.lstrip())


def _item(
    answer: str, lines: Sequence[_Line], item: tuple[int, int], options: SyntacticSection, depth: int
) -> list[Mark]:
    first, last = item
    marker = _marker(lines[first])
    assert marker is not None, "items open with a marker"
    text_start, end = lines[first].start + marker.width, _text_end(lines, last)
    head = _BOLD_HEAD.match(answer, text_start, lines[first].end) or _COLON_HEAD.match(
        answer, text_start, lines[first].end
    )
    topic = to_topic(head["title"]) if head else opening(answer[text_start : lines[first].end])
    if options.head == "chunk":
        start = lines[first].start + len(lines[first].text) - len(lines[first].text.lstrip())
    elif head is not None:
        start = head.end()
    else:
        start = text_start if options.untitled == "chunk" else _sentence_end(answer, text_start, end)
    inner: list[Mark] = []
    if depth < options.max_depth:
        for block in _blocks(lines, first + 1, last, options):
            for nested in block.items:
                inner += _item(answer, lines, nested, options, depth + 1)
    if not answer[start:end].strip():
        return inner
    if inner and start > inner[0].at:  # the first sentence ends inside the list, the title before it
        lists = (block for block in _blocks(lines, first + 1, last, options) if block.items)
        start = _text_end(lines, next(lists).first)
    return [Mark(start, "open", topic), *inner, Mark(end, "close")]


def _paragraph(answer: str, lines: Sequence[_Line], block: _Block) -> list[Mark]:
    """All but the first sentence of a paragraph; nothing of one that announces what follows it."""
    start, end = lines[block.first].start, _text_end(lines, block.last)
    sentence = _sentence_end(answer, start, end)
    if sentence == end or answer.endswith((":", "："), sentence, end):
        return []
    topic = opening(answer[start:sentence])
    return [Mark(sentence, "open", topic), Mark(end, "close")]


def _sentence_end(answer: str, start: int, end: int) -> int:
    """Where the first sentence of a text ends: at its end if it has only one. No sentence begins in lower case; many
    scripts have no case."""
    found = _SENTENCE_END.finditer(answer, start + _MIN_SENTENCE_CHARS, end)
    return next((each.end() for each in found if not (each["next"] or "").islower()), end)


def _text_end(lines: Sequence[_Line], last: int) -> int:
    line = lines[last - 1]
    return line.start + len(line.text.rstrip())
