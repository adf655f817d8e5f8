"""Annotated answers in JSONL files, and what can be wrong with them."""

import codecs
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pasta.errors import UserError
from pasta.lang import Document, ParseError, parse, render


class RecordError(UserError):
    """One line that is not a valid annotated answer; the message does not name file and line."""


@dataclass(frozen=True, slots=True)
class Record:
    """A valid line: the prompt (the last user message) and the document."""

    prompt: str
    document: Document


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of a file (``-`` is standard input) with their numbers. Raises UserError."""
    with _open(path) as file:
        yield from numbered(file)


def read_bytes(path: Path) -> bytes:
    """A whole file (``-`` is standard input), without a byte order mark. Raises UserError."""
    with _open(path) as file:
        return file.read().removeprefix(codecs.BOM_UTF8)


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines with their numbers from 1, without a byte order mark."""
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield number, text


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with contextlib.ExitStack() as stack:
            yield sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); expected a file of annotated answers"
        ) from None


def parse_record(line: bytes, field: str = "annotated") -> Record:
    """One line of a JSONL file as a record. Raises RecordError, saying what was expected."""
    values = _load(line)
    annotated = _text(values, field)
    if annotated is None:
        raise RecordError(f"no key {field!r}; keys here: {', '.join(map(repr, values)) or 'none'}")
    prompt = _prompt(values)
    try:
        document = parse(annotated)
        answer, expected = render(document), _text(values, "answer")
    except ParseError as error:
        raise RecordError(f"{field}: {error}") from None
    except RecursionError:
        raise RecordError(f"{field}: chunks are nested too deeply; expected at most a few levels") from None
    if expected is not None and answer != expected:
        raise RecordError(f"{field}: {_difference(answer, expected)}")
    return Record(prompt, document)


def _load(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise RecordError("not a record: JSON nested too deeply") from None
    if not isinstance(values, dict):
        raise RecordError(f'expected an object such as {{"prompt": …}}, got {_kind(values)}')
    return values


def _text(values: dict[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RecordError(f"{key}: expected a string, got {_kind(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(f"{key}: character {error.start + 1} is half of a surrogate pair") from None
    return value


def _prompt(values: dict[str, Any]) -> str:
    prompt = _text(values, "prompt")
    if prompt is not None:
        return prompt
    messages = values.get("messages")
    if messages is None:
        raise RecordError("neither 'prompt' nor 'messages' is given")
    if (
        not isinstance(messages, list)
        or not all(isinstance(message, dict) for message in messages)
        or not messages
    ):
        raise RecordError("messages: expected a list of objects with 'role' and 'content'")
    texts = [(_text(message, "role"), _text(message, "content")) for message in messages]
    if any(role is None or content is None for role, content in texts):
        raise RecordError("messages: expected 'role' and 'content' in each message")
    return next((content for role, content in reversed(texts) if role == "user" and content is not None), "")


def _difference(answer: str, expected: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
    at = min(len(answer), len(expected)) if at is None else at
    return (
        f"does not strip to the answer: they differ at character {at + 1}, expected {expected[at : at + 24]!r}, "
        f"got {answer[at : at + 24]!r}"
    )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
