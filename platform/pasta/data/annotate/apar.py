"""Annotates as APAR's released data scripts do (Liu et al., arXiv 2401.06761; github.com/THUDM/APAR, folder data).

Those rules are strict, since they were made to find clean examples in a large corpus: a numbered list forks if every
item has a title and a colon, an answer of paragraphs if at least three of them have more than one sentence. Everything
else, bullet points included, stays one thread. What forks is what comes after the title, or after the first sentence.
"""

import re

from pasta.data.annotate.annotator import Proposal
from pasta.data.annotate.marks import Mark, apply_marks
from pasta.data.annotate.syntactic import SHORTEST_TOPIC
from pasta.data.instructions import Instruction
from pasta.lang import to_text

#: Answers with one of these are never forked: code, formulas, markup, links.
_CONFUSING = ("```", "$$", ">", "<", "=", "---", "http")
#: Abbreviations whose full stop would be taken for the end of a sentence.
_ABBREVIATIONS = ("mr.", "mrs.", "dr.")
_ITEM = re.compile(r"^[ \t]*\d+\.[ \t]+", re.MULTILINE)
_BLANK = re.compile(r"\n\n+")
_SENTENCE = ". "
_MIN_FORKS = 3
_MIN_DETAILS = 10
#: Characters of a paragraph that stay with the parent: 20, of which the script's own mark of a fork takes 11.
_MIN_PARAGRAPH, _MIN_OPENING = 20, 9


def propose_apar(record: Instruction) -> Proposal:
    """The annotation by APAR's released rules; it strips to its answer by construction."""
    return Proposal(to_text(apply_marks(record.answer, apar_marks(record.answer))))


def apar_marks(answer: str) -> list[Mark]:
    """Marks for the forks in an answer; none if the rules find no structure."""
    if any(sign in answer for sign in _CONFUSING):
        return []
    spans = _list_spans(answer) or _paragraph_spans(answer)
    return [
        mark for start, end in spans for mark in (Mark(start, "open", SHORTEST_TOPIC), Mark(end, "close"))
    ]


def _list_spans(answer: str) -> list[tuple[int, int]]:
    """What follows the colon of each item of a numbered list, if every item has one."""
    items = [*_ITEM.finditer(answer)]
    if len(items) < _MIN_FORKS:
        return []
    spans = []
    for number, item in enumerate(items):
        if number + 1 < len(items):
            end = items[number + 1].start()
        else:
            blank = _BLANK.search(answer, item.end())
            end = blank.start() if blank else len(answer)
        colon = answer.find(":", item.end(), end)
        details = answer[colon + 1 : end].rstrip()
        if colon < 0 or len(details) < _MIN_DETAILS:
            return []
        spans.append((colon + 1, colon + 1 + len(details)))
    return spans


def _paragraph_spans(answer: str) -> list[tuple[int, int]]:
    """What follows the first sentence, for each paragraph with more than one."""
    if any(word in answer.lower() for word in _ABBREVIATIONS):
        return []
    spans: list[tuple[int, int]] = []
    paragraphs = 0
    start = 0
    for end in (*(blank.start() for blank in _BLANK.finditer(answer)), len(answer)):
        text = answer[start:end]
        first, end_of_text = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        start = end
        if first >= end_of_text:
            continue
        paragraphs += 1
        stop = answer.find(_SENTENCE, first, end_of_text)
        if stop < 0 and end_of_text - first < _MIN_PARAGRAPH:
            return []
        if stop >= 0:
            opening = stop + len(_SENTENCE)
            if opening - first < _MIN_OPENING:
                return []
            spans.append((opening, end_of_text))
    return spans if paragraphs >= _MIN_FORKS and len(spans) >= _MIN_FORKS else []
