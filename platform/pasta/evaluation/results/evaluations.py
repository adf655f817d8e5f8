"""A finished or interrupted evaluation, read back from its directory without changing a file.

Needs neither torch nor pydantic: what reads results should run wherever they were copied to.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import read_lines, shown
from pasta.rows import NotJson, numbered, parse_object, read_json
from pasta.stages.records import Record

ANSWERS, VERDICTS, MANIFEST = "answers.jsonl", "verdicts.jsonl", "manifest.json"
_ANSWER_KEYS = {"text", "tokens", "critical_path", "threads", "seconds", "finish_reason"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Answers and verdicts in the order in which they were made.

    ``config`` is the evaluation's own, ``inputs`` the fingerprints of what it read by name. One that is not finished
    has no manifest, and so neither ``inputs`` nor ``code_version``.
    """

    directory: Path
    answers: tuple[Record, ...]
    verdicts: tuple[Record, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    code_version: str = ""
    finished: bool = False

    @property
    def methods(self) -> list[str]:
        """Names of the methods, as configured or in the order in which they occur."""
        configured = self.config.get("methods")
        if isinstance(configured, Mapping):
            return [*configured]
        return [*dict.fromkeys(name for record in self.answers for name in record["answers"])]

    @property
    def baseline(self) -> str | None:
        """The method that the others are measured against, where it is known."""
        return self.config.get("baseline")

    def require(self, method: str) -> str:
        """``method``, if the evaluation has it. Raises UserError, naming those that it has."""
        if method not in self.methods:
            raise UserError(
                f"{self.directory}: no method {method!r}; it has {', '.join(self.methods) or 'none'}"
            )
        return method


def read_evaluation(directory: Path) -> Evaluation:
    """The evaluation in ``directory``. Raises UserError, naming file and line, for what is none."""
    if not os.path.isdir(directory):
        raise UserError(f"{shown(directory)}: no such directory; expected an evaluation's (with {ANSWERS})")
    config, answers = _read(directory / ANSWERS, "answers", _check_answers)
    verdicts: list[Record] = []
    if os.path.exists(directory / VERDICTS):
        _, verdicts = _read(directory / VERDICTS, "verdicts", _check_verdicts)
    if not answers:
        raise UserError(f"{directory / ANSWERS}: it holds no answers yet")
    manifest = _read_manifest(directory / MANIFEST)
    return Evaluation(
        directory,
        tuple(answers),
        tuple(verdicts),
        config=manifest.get("config") or config,
        inputs={name: value["fingerprint"] for name, value in manifest.get("inputs", {}).items()},
        code_version=manifest.get("code_version", ""),
        finished=bool(manifest),
    )


def last_user_message(messages: Sequence[Mapping[str, str]]) -> str:
    """What the user asked last."""
    return next((turn["content"] for turn in reversed(messages) if turn["role"] == "user"), "")


def _read(path: Path, key: str, check: Any) -> tuple[dict[str, Any], list[Record]]:
    """The configuration in a RecordFile's first line and its records; a last line that was cut off is left out."""
    row = f'a record of an evaluation, {{"key", "{key}", …}}'
    config: dict[str, Any] = {}
    records: dict[str, Record] = {}
    for number, line in numbered(read_lines(path, expected="the directory of an evaluation")):
        try:
            value = parse_object(line, row)
            if "config" in value and "key" not in value:
                config = value["config"] if isinstance(value["config"], dict) else {}
            elif isinstance(value.get("key"), str) and check(value):
                records[value["key"]] = value
            else:
                raise UserError(f"expected {row}")
        except UserError as error:
            if isinstance(error, NotJson) and not line.endswith(b"\n"):  # a process was killed while it wrote
                break
            raise UserError(f"{shown(path)}:{number}: {error}") from None
    return config, [*records.values()]


def _check_answers(record: Record) -> bool:
    answers, messages = record.get("answers"), record.get("messages")
    if not isinstance(answers, dict) or not isinstance(messages, list):
        return False
    if not all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in messages):
        return False
    return all(
        isinstance(answer, dict) and ("skipped" in answer or answer.keys() >= _ANSWER_KEYS)
        for answer in answers.values()
    )


def _check_verdicts(record: Record) -> bool:
    verdicts = record.get("verdicts")
    return isinstance(verdicts, dict) and all(
        isinstance(verdict, dict) and "quality" in verdict for verdict in verdicts.values()
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    value = read_json(path) if os.path.exists(path) else {}
    return value if isinstance(value, dict) else {}
