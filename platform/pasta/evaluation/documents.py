"""Documents to replay: from a user's file, or from the answers that a model gave."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.evaluation.records import Record
from pasta.lang import Document, ParseError, parse


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt as chat messages, and its annotated answer."""

    messages: list[dict[str, str]]
    document: Document


def read_documents(path: Path) -> list[Recorded]:
    """Documents of a JSONL file: ``prompt`` (a text, or chat messages) and ``annotated`` (text form) a line.

    Raises ``UserError`` with file and line of the first one that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except FileNotFoundError:
        raise UserError(f"--documents {str(path)!r}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--documents {str(path)!r}: cannot be read as UTF-8 text ({error})") from None
    out = [_read(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not out:
        raise UserError(
            f'--documents {str(path)!r}: it is empty, expected lines of {{"prompt", "annotated"}}'
        )
    return out


def answered(records: Iterable[Record], count: int) -> list[Recorded]:
    """Up to ``count`` answers with chunks, from records of a model's answers in order."""
    chosen = [record for record in records if record["independent"] and record["pasta"]["threads"] > 1]
    return [Recorded(_messages(record["prompt"]), parse(record["annotated"])) for record in chosen[:count]]


def _read(line: str, where: str) -> Recorded:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    fields = value if isinstance(value, dict) else {}
    if not isinstance(fields.get("annotated"), str) or not _is_prompt(fields.get("prompt")):
        raise UserError(
            f'{where}: expected an object with "prompt" (text or messages) and "annotated" (text)'
        )
    try:
        return Recorded(_messages(fields["prompt"]), parse(fields["annotated"]))
    except ParseError as error:
        raise UserError(f"{where}: annotated: {error}") from None


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        for turn in value
    )


def _messages(prompt: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
