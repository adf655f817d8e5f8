"""Traces: the answers that are asked for, from a file, and how their tokens are counted."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.interpreter import ConstraintError
from pasta.lang import Codec, CodecError, Document, ParseError, parse
from pasta.simulation.config import TraceSection
from pasta.simulation.script import Ids, Scripts

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Traced:
    """One line: a prompt, its annotated answer, and what is known besides. ``key`` is its file and line."""

    messages: Messages
    document: Document
    key: str
    prompt_tokens: int | None = None
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Scripts in the order in which they are asked for; ``left_out`` says why others are not among them."""

    scripts: list[Scripts]
    left_out: dict[str, str]

    @property
    def arrivals_s(self) -> list[float]:
        """When they were asked for. Raises ``UserError`` if one has no time."""
        times = [scripts.arrival_s for scripts in self.scripts]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            raise UserError(
                f"load.kind trace: {len(times) - len(known)} of the trace's {len(times)} lines have no arrival_s"
            )
        return known


def read_trace(path: Path, field: str = "annotated", method: str | None = None) -> list[Traced]:
    """The lines of a JSONL file, or of an annotate stage's directory.

    A first line that holds a measurement's configuration is passed over. Raises ``UserError`` with file and line of
    the first one that is wrong.
    """
    files = sorted(path.glob("annotated-*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"trace.source: {str(path)!r} has no annotated-*.jsonl, expected an annotate stage's")
    return [_read(value, where, field, method) for file in files for where, value in read_objects(file)]


def pick(traced: Sequence[Traced], section: TraceSection) -> list[Traced]:
    """Those that a section asks for, in its order. Fewer are the first ones of more."""
    drawn = list(traced)
    if section.shuffle:
        random.Random(f"trace:{section.seed}").shuffle(drawn)
    return drawn[: section.count]


def make_trace(
    traced: Sequence[Traced],
    codec: Codec,
    slot_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """Count and script them. What the tokenizer cannot carry, or a slot cannot hold, is left out with its reason.

    Raises ``UserError`` if nothing is left.
    """
    encoded: dict[str, Ids] = {}
    left_out: dict[str, str] = {}
    for line in traced:
        try:
            prompt = line.prompt_tokens or len(codec.encode_prompt(line.messages))
            encoded[line.key] = Ids.of(codec, line.document, max(prompt, 1), line.arrival_s)
        except CodecError as error:
            left_out[line.key] = str(error)
    grammar = codec.grammar  # after all words are known
    scripts = []
    for number, (key, ids) in enumerate(encoded.items(), start=1):
        try:
            both = ids.scripts(grammar)
        except ConstraintError as error:
            left_out[key] = str(error)
            continue
        # One place is the engine's scratch.
        if both.num_tokens >= slot_tokens:
            left_out[key] = f"{both.num_tokens} tokens, but a slot holds {slot_tokens}"
        else:
            scripts.append(both)
        progress(number, len(encoded))
    if not scripts:
        key, reason = next(iter(left_out.items()))
        raise UserError(f"trace: none of {len(traced)} answers can be decoded ({key}: {reason})")
    return Trace(scripts, left_out)


def read_objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its file and line; a first one that is a configuration is passed over.

    Raises ``UserError`` if there are none, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, expected JSON lines") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    objects = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            value = _load(line, f"{path}:{number}")
            if not (number == 1 and "config" in value and "key" not in value):
                objects.append((f"{path}:{number}", value))
    if not objects:
        raise UserError(f"{path}: it is empty, expected JSON lines")
    return objects


def number_of(value: Mapping[str, Any], name: str, where: str) -> float | None:
    """A number of 0 or more, if there is one. Raises ``UserError`` for anything else."""
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
        raise UserError(f"{where}: {name}: {number!r}, expected a number of 0 or more")
    return float(number)


def _load(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected an object")
    return value


def _read(value: dict[str, Any], where: str, field: str, method: str | None) -> Traced:
    answer = value
    if method is not None:
        answers = value.get("answers")
        found = answers.get(method) if isinstance(answers, dict) else None
        if not isinstance(found, dict):
            raise UserError(f"{where}: no answer of method {method!r}, expected an evaluation's answers")
        answer = found
    annotated = answer.get(field)
    if not isinstance(annotated, str):
        raise UserError(f"{where}: {field}: expected an answer in text form, got {type(annotated).__name__}")
    try:
        document = parse(annotated)
    except ParseError as error:
        raise UserError(f"{where}: {field}: {error}") from None
    prompt_tokens = number_of(value, "prompt_tokens", where)
    if prompt_tokens is not None and (prompt_tokens < 1 or prompt_tokens != int(prompt_tokens)):
        raise UserError(f"{where}: prompt_tokens: {prompt_tokens:g}, expected a positive integer")
    return Traced(
        messages=_messages(value, where, needed=prompt_tokens is None),
        document=document,
        key=where,
        prompt_tokens=None if prompt_tokens is None else int(prompt_tokens),
        arrival_s=number_of(value, "arrival_s", where),
    )


def _messages(value: dict[str, Any], where: str, *, needed: bool) -> Messages:
    prompt = value.get("prompt", value.get("messages"))
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        for turn in prompt
    ):
        return prompt
    if prompt is None and not needed:
        return []
    raise UserError(f"{where}: expected prompt (text), messages, or prompt_tokens (a number)")
