"""Annotated answers in JSONL files, and what can be wrong with them."""

import codecs
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta import files
from pasta.errors import UserError
from pasta.files import reading
from pasta.lang import Document, parse, render
from pasta.rows import asked, numbered, parse_object, placed, prompt_of, text_of

_EXPECTED = "a file of annotated answers"


@dataclass(frozen=True, slots=True)
class AnnotatedAnswer:
    """A valid line: the prompt (the last user message) and the document."""

    prompt: str
    document: Document


def read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of a file (``-`` is standard input) with their numbers. Raises UserError."""
    if str(path) != "-":
        return numbered(files.read_lines(path, expected=_EXPECTED))
    return numbered(_standard_input())


def read_whole(path: Path) -> bytes:
    """A whole file (``-`` is standard input), without a byte order mark. Raises UserError."""
    if str(path) != "-":
        return files.read_bytes(path, expected=_EXPECTED).removeprefix(codecs.BOM_UTF8)
    return b"".join(_standard_input()).removeprefix(codecs.BOM_UTF8)


def _standard_input() -> Iterator[bytes]:
    if sys.stdin is None:  # the shell's `<&-`
        raise UserError(f"standard input: is closed; expected {_EXPECTED}")
    with reading("standard input", expected=_EXPECTED):
        yield from files.uncompressed(sys.stdin.buffer)


def parse_record(line: bytes, field: str = "annotated") -> AnnotatedAnswer:
    """One line of a JSONL file as a record. Raises UserError, saying what was expected, without file and line."""
    values = parse_object(line, 'an object such as {"prompt": …}')
    if values.get(field) is None:
        raise UserError(f"no key {field!r}; keys here: {', '.join(map(repr, values)) or 'none'}")
    annotated, prompt = text_of(values, field), _prompt(values)
    with placed(field):
        document = parse(annotated)
    if values.get("answer") is not None and (answer := render(document)) != (
        expected := text_of(values, "answer")
    ):
        raise UserError(f"{field}: {_difference(answer, expected)}")
    return AnnotatedAnswer(prompt, document)


def _prompt(values: dict[str, Any]) -> str:
    messages = prompt_of(values)
    if messages is None:
        raise UserError("neither 'prompt' nor 'messages' is given")
    return asked(messages)[-1]["content"]


def _difference(answer: str, expected: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
    at = min(len(answer), len(expected)) if at is None else at
    return (
        f"does not strip to the answer: they differ at character {at + 1}, expected {expected[at : at + 24]!r}, "
        f"got {answer[at : at + 24]!r}"
    )
