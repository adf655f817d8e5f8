"""Reads a finished or interrupted evaluation from its directory, without changing a file.

Imports neither torch nor pydantic, so that results can be read wherever they are copied to.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import read_lines, shown
from pasta.rows import NotJson, is_number, messages_of, numbered, parse_object, placed, read_json
from pasta.stages.records import Record

ANSWERS, VERDICTS, MANIFEST = "answers.jsonl", "verdicts.jsonl", "manifest.json"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Answers and verdicts in the order in which they were made.

    ``config`` is the evaluation's own, ``inputs`` the fingerprints of what it read by name. One that is not finished
    has no manifest, and so no ``code_version``. ``prompts`` is how many it had answered when it was finished.
    """

    directory: Path
    answers: tuple[Record, ...]
    verdicts: tuple[Record, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    code_version: str = ""
    finished: bool = False
    prompts: int = 0

    @property
    def methods(self) -> list[str]:
        """Names of the methods, as configured or in the order in which they occur."""
        configured = self.config.get("methods")
        if isinstance(configured, Mapping):
            return [*configured]
        return [*dict.fromkeys(name for record in self.answers for name in record["answers"])]

    @property
    def baseline(self) -> str | None:
        """The method that the others are compared with, if it is known."""
        return self.config.get("baseline")

    def lacks(self, *, verdicts: bool = False) -> list[str]:
        """What is not there, in words: it is not finished, or its files have been cut or copied in part since."""
        if not self.finished:
            return ["not finished"]
        found = []
        if (count := len(self.answers)) < self.prompts:
            found.append(f"the answers to {self.prompts - count} of {self.prompts} prompts are gone")
        unjudged = {record["key"] for record in self.answers} - {record["key"] for record in self.verdicts}
        if verdicts and unjudged and self.config.get("judge"):
            found.append(f"the verdicts on {len(unjudged)} of {count} prompts are gone")
        return found

    def require(self, method: str) -> str:
        """``method``, if the evaluation has it. Raises UserError, naming those that it has."""
        if method not in self.methods:
            raise UserError(
                f"{self.directory}: no method {method!r}; it has {', '.join(self.methods) or 'none'}"
            )
        return method


def read_evaluation(directory: Path) -> Evaluation:
    """Read the evaluation in ``directory``. Raises UserError, naming file and line, if it is none."""
    if not os.path.isdir(directory):
        raise UserError(f"{shown(directory)}: no such directory; expected an evaluation's (with {ANSWERS})")
    head, answers = _read(directory / ANSWERS, "answers", _check_answers)
    verdicts: list[Record] = []
    if os.path.exists(directory / VERDICTS):
        _, verdicts = _read(directory / VERDICTS, "verdicts", _check_verdicts)
    if not answers:
        raise UserError(f"{directory / ANSWERS}: it holds no answers yet")
    manifest = _read_manifest(directory / MANIFEST)
    read = {name: value["fingerprint"] for name, value in manifest.get("inputs", {}).items()}
    return Evaluation(
        directory,
        tuple(answers),
        tuple(verdicts),
        config=manifest.get("config") or head.get("config", {}),
        inputs=read if manifest else head.get("inputs", {}),
        code_version=manifest.get("code_version", ""),
        finished=bool(manifest),
        prompts=int(manifest.get("figures", {}).get("prompts", 0)),
    )


def last_user_message(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the content of the last user message."""
    return next((turn["content"] for turn in reversed(messages) if turn["role"] == "user"), "")


def _read(path: Path, key: str, check: Any) -> tuple[dict[str, Any], list[Record]]:
    """A RecordFile's first line and its records; a last line that was cut off is left out."""
    row = f'a record of an evaluation, {{"key", "{key}", …}}'
    head: dict[str, Any] = {}
    records: dict[str, Record] = {}
    for number, line in numbered(read_lines(path, expected="the directory of an evaluation")):
        try:
            value = parse_object(line, row)
            if "config" in value and "key" not in value:
                head = {**value, "config": _checked_config(value["config"])}
            elif isinstance(value.get("key"), str) and check(value):
                records[value["key"]] = value
            else:
                raise UserError(f"expected {row}")
        except UserError as error:
            if isinstance(error, NotJson) and not line.endswith(b"\n"):  # a process was killed while it wrote
                break
            raise UserError(f"{shown(path)}:{number}: {error}") from None
    return head, [*records.values()]


def _checked_config(config: Any) -> dict[str, Any]:
    """The configuration, if it is a mapping. Raises UserError if a part that is read has another type."""
    if not isinstance(config, dict):
        return {}
    methods = config.get("methods", {})
    if not isinstance(methods, dict) or not all(isinstance(method, dict) for method in methods.values()):
        raise UserError("config.methods: expected an object of objects, a method each")
    if not isinstance(config.get("baseline"), str | None):
        raise UserError("config.baseline: expected the name of a method")
    return config


def _check_answers(record: Record) -> bool:
    answers, family, independent = (record.get(key) for key in ("answers", "family", "independent"))
    try:
        messages_of(record)
    except UserError:
        return False
    return (
        isinstance(answers, dict)
        and isinstance(family, str | None)
        and isinstance(independent, bool | None)
        and all(isinstance(each, dict) and _is_answer(each) for each in answers.values())
    )


def _is_answer(answer: Mapping[str, Any]) -> bool:
    if "skipped" in answer:
        return isinstance(answer["skipped"], str)
    return answer.keys() >= _ANSWER.keys() and all(is_one(answer[key]) for key, is_one in _ANSWER.items())


def _is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0


_ANSWER: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "tokens": _is_amount,
    "critical_path": lambda value: value is None or _is_amount(value),
    "threads": lambda value: (
        value is None or (isinstance(value, list) and all(isinstance(thread, dict) for thread in value))
    ),
    "seconds": lambda value: isinstance(value, list) and all(_is_amount(each) and each > 0 for each in value),
    "finish_reason": lambda value: isinstance(value, str),
}


def _check_verdicts(record: Record) -> bool:
    verdicts = record.get("verdicts")
    return isinstance(verdicts, dict) and all(
        isinstance(verdict, dict)
        and "quality" in verdict
        and (verdict["quality"] is None or is_number(verdict["quality"]))
        for verdict in verdicts.values()
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    if not os.path.exists(path):
        return {}
    value = read_json(path)
    inputs, figures = (
        value.get(key, {}) if isinstance(value, dict) else None for key in ("inputs", "figures")
    )
    if (
        not isinstance(inputs, dict)
        or not all(
            isinstance(each, dict) and isinstance(each.get("fingerprint"), str) for each in inputs.values()
        )
        or not isinstance(figures, dict)
        or not _is_amount(figures.get("prompts", 0))
    ):
        raise UserError(f"{shown(path)}: expected the manifest of an evaluation")
    with placed(shown(path)):
        return {**value, "config": _checked_config(value.get("config"))}
