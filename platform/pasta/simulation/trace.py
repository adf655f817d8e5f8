"""Reads traces, the answers that clients request, and counts their tokens."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import ANNOTATED, annotated_files
from pasta.interpreter import ConstraintError
from pasta.lang import Codec, CodecError, Document, annotated_ids, parse, plain_ids
from pasta.rows import is_number, placed, prompt_of, read_rows, short_repr, text_of
from pasta.simulation.config import TraceSection
from pasta.simulation.script import Scripts

Messages = Sequence[Mapping[str, str]]
#: More than any model's context; the simulator holds every token of a prompt.
MAX_PROMPT_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class Traced:
    """One line: a prompt, its annotated answer, and what is known besides. ``key`` is its file and line; ``skipped`` is
    why there is no answer, empty if there is one."""

    messages: Messages
    document: Document
    key: str
    prompt_tokens: int | None = None
    arrival_s: float | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Scripts in the order of their requests; ``left_out`` is the reason for each answer that was left out."""

    scripts: list[Scripts]
    left_out: dict[str, str]

    @property
    def arrivals_s(self) -> list[float]:
        """The arrival times of the requests. Raises ``UserError`` if one has no time."""
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
    files = annotated_files(path)
    if not files:
        raise UserError(f"{str(path)!r} has no {ANNOTATED}, expected an annotate stage's")
    return [_read(value, where, field, method) for file in files for where, value in read_objects(file)]


def pick_answers(traced: Sequence[Traced], section: TraceSection) -> list[Traced]:
    """Pick a section's answers in its order. A smaller count picks the first ones of a larger count."""
    drawn = list(traced)
    if section.shuffle:
        random.Random(f"trace:{section.seed}").shuffle(drawn)
    return drawn[: section.count]


def make_trace(
    traced: Sequence[Traced],
    codec: Codec,
    slot_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Workload:
    """Make a script of each answer. Those that the tokenizer or a slot cannot hold, or that an evaluation's method
    skipped, are left out with the reason.

    Raises ``UserError`` if nothing is left.
    """
    encoded: dict[str, tuple[int, list[int], list[int], float | None]] = {}
    left_out: dict[str, str] = {}
    for line in traced:
        if line.skipped:
            left_out[line.key] = line.skipped
            continue
        try:
            prompt = line.prompt_tokens or len(codec.encode_prompt(line.messages))
            ids = plain_ids(codec, line.document), annotated_ids(codec, line.document)
            encoded[line.key] = (max(prompt, 1), *ids, line.arrival_s)
        except CodecError as error:
            left_out[line.key] = str(error)
    grammar = codec.grammar  # after all words are known: a vocabulary of words grows
    scripts = []
    for number, (key, known) in enumerate(encoded.items(), start=1):
        try:
            both = Scripts.of(grammar, *known)
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
    return Workload(scripts, left_out)


def read_objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its file and line; a first one that is a configuration is passed over.

    Raises ``UserError`` if there are none, or a line is something else.
    """
    objects = [
        (place, row)
        for number, (place, row) in enumerate(read_rows(path, expected="JSON lines"))
        if not (number == 0 and "config" in row and "key" not in row)
    ]
    if not objects:
        raise UserError(f"{path}: it is empty, expected JSON lines")
    return objects


def number_of(value: Mapping[str, Any], name: str, where: str) -> float | None:
    """A number of 0 or more, if there is one. Raises ``UserError`` for anything else."""
    number = value.get(name)
    if number is None:
        return None
    if not is_number(number) or number < 0:
        raise UserError(f"{where}: {name}: {short_repr(number)}, expected a number of 0 or more")
    return float(number)


def _read(value: dict[str, Any], where: str, field: str, method: str | None) -> Traced:
    answer = value
    if method is not None:
        answers = value.get("answers")
        found = answers.get(method) if isinstance(answers, dict) else None
        if not isinstance(found, dict):
            raise UserError(f"{where}: no answer of method {method!r}, expected an evaluation's answers")
        if isinstance(why := found.get("skipped"), str):
            return Traced(
                _messages(value, where, needed=True), Document(()), where, skipped=f"skipped: {why}"
            )
        answer = found
    with placed(where):
        annotated = text_of(answer, field)
    with placed(f"{where}: {field}"):
        document = parse(annotated)
    prompt_tokens = number_of(value, "prompt_tokens", where)
    if prompt_tokens is not None and (
        not 1 <= prompt_tokens <= MAX_PROMPT_TOKENS or prompt_tokens != int(prompt_tokens)
    ):
        raise UserError(
            f"{where}: prompt_tokens: {prompt_tokens:g}, expected a positive integer up to {MAX_PROMPT_TOKENS}"
        )
    return Traced(
        messages=_messages(value, where, needed=prompt_tokens is None),
        document=document,
        key=where,
        prompt_tokens=None if prompt_tokens is None else int(prompt_tokens),
        arrival_s=number_of(value, "arrival_s", where),
    )


def _messages(value: dict[str, Any], where: str, *, needed: bool) -> Messages:
    with placed(where):
        messages = prompt_of(value)
        if messages is None and needed:
            raise UserError("expected prompt (text), messages, or prompt_tokens (a number)")
    return messages or []
