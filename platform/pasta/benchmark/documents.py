"""Documents to replay: from a user's file, an annotate stage, or the answers that a model gave."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pasta.errors import UserError
from pasta.lang import Document, ParseError, parse
from pasta.stages.records import Record


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt as chat messages, and its annotated answer.

    ``key`` is its file and line, ``source`` the file that an annotate stage had the plain answer from ("" if unknown).
    """

    messages: list[dict[str, str]]
    document: Document
    key: str = field(default="", compare=False)
    source: str = field(default="", compare=False)


def document_files(path: Path) -> list[Path]:
    """``path`` itself, or the files of the annotate stage in that directory. Raises ``UserError`` if it has none."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("annotated-*.jsonl"))
    if not files:
        raise UserError(
            f"--documents {str(path)!r}: no annotated-*.jsonl in it, expected the output directory of jobs.annotate"
        )
    return files


def read_documents(path: Path) -> list[Recorded]:
    """Documents of a JSONL file, or of an annotate stage's output directory.

    A line holds ``prompt`` (a text, or chat messages) or ``messages``, and ``annotated`` (text form). Raises
    ``UserError`` with file and line of the first one that is wrong.
    """
    return [document for file in document_files(path) for document in _read_file(file)]


def sample_documents(documents: Sequence[Recorded], count: int, seed: int) -> list[Recorded]:
    """Up to ``count`` documents in a random order that follows from ``seed``: fewer are the first ones of more."""
    drawn = list(documents)
    random.Random(f"replay:{seed}").shuffle(drawn)
    return drawn[:count]


def _read_file(path: Path) -> list[Recorded]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except FileNotFoundError:
        raise UserError(f"--documents {str(path)!r}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--documents {str(path)!r}: cannot be read as UTF-8 text ({error})") from None
    out = [_read(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not out:
        raise UserError(
            f'--documents {str(path)!r}: it is empty, expected lines of {{"prompt", "annotated"}}'
        )
    return out


def answered(records: Iterable[Record], count: int) -> list[Recorded]:
    """Up to ``count`` answers with chunks, from records of a model's answers in order."""
    chosen = [record for record in records if record["independent"] and record["pasta"]["threads"] > 1]
    return [Recorded(_messages(record["prompt"]), parse(record["annotated"])) for record in chosen[:count]]


def _read(line: str, path: Path, number: int) -> Recorded:
    where = f"{path}:{number}"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    fields = value if isinstance(value, dict) else {}
    prompt = fields.get("prompt", fields.get("messages"))
    if not isinstance(fields.get("annotated"), str) or not _is_prompt(prompt):
        raise UserError(
            f'{where}: expected an object with "prompt" (text or messages) and "annotated" (text)'
        )
    try:
        document = parse(fields["annotated"])
    except ParseError as error:
        raise UserError(f"{where}: annotated: {error}") from None
    source = fields.get("source")
    # An annotate stage writes FILE:PLACE.
    source = Path(source.rpartition(":")[0]).name if isinstance(source, str) else ""
    return Recorded(_messages(prompt), document, key=f"{path.name}:{number}", source=source)


def _is_prompt(value: Any) -> TypeGuard[str | list[dict[str, str]]]:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        for turn in value
    )


def _messages(prompt: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
