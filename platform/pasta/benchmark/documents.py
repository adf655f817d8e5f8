"""Reads documents to replay: from a user's file, an annotate stage, or recorded answers of a model."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import ANNOTATED, annotated_files
from pasta.lang import Document, parse
from pasta.rows import placed, prompt_of, read_rows, text_of
from pasta.stages.records import Record


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt as chat messages, and its annotated answer.

    ``key`` is its file and line, or its number among a model's answers; ``source`` the file that an annotate stage had
    the plain answer from ("" if unknown).
    """

    messages: list[dict[str, str]]
    document: Document
    key: str = field(default="", compare=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A document as token ids: the prompt, the answer without its tags, and the answer with them in storage order."""

    key: str
    prompt: list[int]
    sequential: list[int]
    annotated: list[int]
    source: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of cache that it needs."""
        return len(self.prompt) + len(self.annotated)


def document_files(path: Path) -> list[Path]:
    """``path`` itself, or the files of the annotate stage in that directory. Raises ``UserError`` if it has none."""
    files = annotated_files(path)
    if not files:
        raise UserError(
            f"--documents {str(path)!r}: no {ANNOTATED} in it, expected the output directory of jobs.annotate"
        )
    return files


def read_documents(path: Path) -> list[Recorded]:
    """Documents of a JSONL file, or of an annotate stage's output directory.

    A line holds ``prompt`` (a text, or chat messages) or ``messages``, and ``annotated`` (text form). Raises
    ``UserError`` with file and line of the first one that is wrong.
    """
    return [document for file in document_files(path) for document in _read_file(file)]


def sample_documents(documents: Sequence[Recorded], count: int, seed: int) -> list[Recorded]:
    """Up to ``count`` documents in a random order that depends on ``seed`` alone: a smaller count gives the first ones
    of a larger."""
    drawn = list(documents)
    random.Random(f"replay:{seed}").shuffle(drawn)
    return drawn[:count]


def _read_file(path: Path) -> list[Recorded]:
    rows = read_rows(
        path, key="--documents", row='an object with "prompt" (text or messages) and "annotated" (text)'
    )
    out = [_recorded(path, place, row) for place, row in rows]
    if not out:
        raise UserError(
            f'--documents {str(path)!r}: it is empty, expected lines of {{"prompt", "annotated"}}'
        )
    return out


def answered(records: Iterable[Record], count: int) -> list[Recorded]:
    """Up to ``count`` answers with chunks, from records of a model's answers in order."""
    chosen = [record for record in records if record["independent"] and record["pasta"]["threads"] > 1]
    return [
        Recorded(prompt_of(record) or [], parse(record["annotated"]), key=str(number))
        for number, record in enumerate(chosen[:count])
    ]


def _recorded(path: Path, place: str, row: dict[str, Any]) -> Recorded:
    with placed(place):
        text, messages = text_of(row, "annotated"), prompt_of(row)
        if messages is None:
            raise UserError('expected an object with "prompt" (text or messages) and "annotated" (text)')
    with placed(f"{place}: annotated"):
        document = parse(text)
    source = row.get("source")
    # An annotate stage writes FILE:PLACE.
    source = Path(source.rpartition(":")[0]).name if isinstance(source, str) else ""
    return Recorded(messages, document, key=f"{path.name}:{place.rpartition(':')[2]}", source=source)
