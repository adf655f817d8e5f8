"""Reads an instruction and its answer from the common formats of chat data."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pasta.errors import UserError
from pasta.rows import short_repr

Format = Literal["auto", "messages", "conversations", "instruction"]
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
_ASKED = ("instruction", "prompt", "question")
_ANSWERED = ("output", "response", "answer", "completion")
_GIVEN = ("input", "context")
_SYSTEM = ("system", "system_prompt")
_SHOWN_KEYS = 6


class BrokenRecord(UserError):
    """A record without an instruction and its answer; the message says what was expected, not where."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """``messages`` lead up to ``answer``: each has ``role`` and ``content``, and the last one is the user's.

    ``place`` says where it was read.
    """

    id: str
    place: str
    messages: tuple[Mapping[str, str], ...]
    answer: str


def to_instruction(record: Any, place: str, form: Format = "auto") -> Instruction:
    """Read a record; of several assistant turns the last is the answer and what follows it is left out.

    Formats: ``messages`` (role, content), ``conversations`` (from, value), ``instruction`` (instruction and perhaps
    input; output; perhaps ``history``, pairs of an earlier instruction and its output; or a prompt of messages and its
    completion, of messages too or a text). A text ``system`` beside any of them comes first. Raises BrokenRecord.
    """
    if not isinstance(record, Mapping):
        raise BrokenRecord("expected an object with messages, conversations, or instruction and output")
    turns = _turns(record, _format_of(record) if form == "auto" else form)
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=None)
    if last is None:
        raise BrokenRecord("no answer: no message of the assistant")
    if not any(role == "user" for role, _ in turns[:last]):
        raise BrokenRecord("no question: no message of the user before the answer")
    if turns[last - 1][0] != "user":
        raise BrokenRecord(f"no question: a message of the {turns[last - 1][0]} stands before the answer")
    answer = turns[last][1]
    if not answer.strip():
        raise BrokenRecord("the answer is empty")
    messages = tuple({"role": role, "content": content} for role, content in turns[:last])
    given = record.get("id")
    name = str(given) if isinstance(given, str | int) and str(given) else place
    return Instruction(name, place, messages, answer)


def _format_of(record: Mapping[str, Any]) -> Format:
    for form in ("messages", "conversations"):
        if record.get(form) is not None:
            return form
    if any(record.get(key) is not None for key in _ASKED):
        return "instruction"
    shown = [short_repr(key) for key in itertools.islice(record, _SHOWN_KEYS)]
    keys = ", ".join(shown) or "none"
    if len(record) > len(shown):
        keys += f" and {len(record) - len(shown):,} more"
    raise BrokenRecord(f"expected messages, conversations, or instruction and output; keys here: {keys}")


def _turns(record: Mapping[str, Any], form: Format) -> list[tuple[str, str]]:
    if form == "instruction":
        return _instruction_turns(record)
    # Our own records keep the answer beside the messages.
    answer = record.get("answer")
    turns = _message_turns(record, form, to_last_answer=not isinstance(answer, str))
    if turns[-1][0] == "user" and isinstance(answer, str):
        turns.append(("assistant", _text(answer, "answer")))
    return _with_system(record, turns)


def _message_turns(
    record: Mapping[str, Any], key: str, *, to_last_answer: bool = False
) -> list[tuple[str, str]]:
    """The turns in the list of messages under ``key``, one at least. With ``to_last_answer`` what follows the last
    message of the assistant is not read."""
    role_key, text_key = ("from", "value") if key == "conversations" else ("role", "content")
    values = record.get(key)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise BrokenRecord(f"{key}: expected a list of objects with {role_key!r} and {text_key!r}")
    roles = [_role(value, role_key) for value in values]
    end = len(values)
    if to_last_answer and "assistant" in roles:
        end -= roles[::-1].index("assistant")
    turns = []
    for number, (role, value) in enumerate(zip(roles[:end], values[:end], strict=True), start=1):
        where = f"{key}: message {number}"
        if not isinstance(value, Mapping) or role_key not in value or text_key not in value:
            raise BrokenRecord(f"{where}: expected an object with {role_key!r} and {text_key!r}")
        if role is None:
            raise BrokenRecord(f"{where}: unknown role {value[role_key]!r}")
        turns.append((role, _text(value[text_key], where)))
    return turns


def _role(message: Any, key: str) -> str | None:
    role = message.get(key) if isinstance(message, Mapping) else None
    return _ROLES.get(role) if isinstance(role, str) else None


def _with_system(record: Mapping[str, Any], turns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """``turns`` behind the system message that some data sets keep beside them."""
    key = next((key for key in _SYSTEM if isinstance(record.get(key), str) and record[key]), None)
    if key is None or turns[0][0] == "system":
        return turns
    return [("system", _text(record[key], key)), *turns]


def _instruction_turns(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    asked, answered = (
        next((key for key in keys if record.get(key) is not None), None) for keys in (_ASKED, _ANSWERED)
    )
    if asked is None or answered is None:
        missing = "an instruction" if asked is None else "its output"
        raise BrokenRecord(f"no {missing.split()[-1]}: expected {missing}")
    if not _holds_messages(record[asked]):
        return [*_asked_turns(record, asked), ("assistant", _text(record[answered], answered))]
    turns = _with_system(record, _message_turns(record, asked))
    if not _holds_messages(record[answered]):
        return [*turns, ("assistant", _text(record[answered], answered))]
    answers = _message_turns(record, answered, to_last_answer=True)
    if answers[-1][0] != "assistant":
        raise BrokenRecord(f"{answered}: no message of the assistant")
    return [*turns, *answers]


def _holds_messages(value: Any) -> bool:
    """Whether a value is a conversation, and not the parts of one text."""
    return isinstance(value, list) and any(isinstance(each, Mapping) and "role" in each for each in value)


def instruction_prompt(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages that ask what ``record``, of the ``instruction`` format, asks under that key: with its input, its
    history and its system message, if it has them. Raises BrokenRecord."""
    return [{"role": role, "content": content} for role, content in _asked_turns(record, "instruction")]


def _asked_turns(record: Mapping[str, Any], asked: str) -> list[tuple[str, str]]:
    question = _text(record.get(asked), asked)
    for key in _GIVEN:
        if record.get(key):
            given = _text(record[key], key)
            question = f"{question}\n\n{given}" if question.strip() else given
    turns = [*_history(record.get("history")), ("user", question)]
    system = next((_text(record[key], key) for key in _SYSTEM if record.get(key)), "")
    return [("system", system), *turns] if system else turns


def _history(pairs: Any) -> list[tuple[str, str]]:
    """The earlier turns of a conversation whose last question is the instruction."""
    if pairs is None or pairs == "":
        return []
    if not isinstance(pairs, Sequence) or isinstance(pairs, str):
        raise BrokenRecord("history: expected a list of pairs, an instruction and its output each")
    turns = []
    for number, pair in enumerate(pairs, start=1):
        where = f"history: pair {number}"
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise BrokenRecord(f"{where}: expected a list of an instruction and its output")
        turns += [("user", _text(pair[0], where)), ("assistant", _text(pair[1], where))]
    return turns


def _text(value: Any, where: str) -> str:
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in value
    ):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise BrokenRecord(f"{where}: expected text, got {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BrokenRecord(f"{where}: character {error.start + 1} is half of a surrogate pair") from None
    return value
