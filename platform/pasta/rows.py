"""JSON values and rows: the one reader of JSON and JSON lines from users and from earlier stages.

Every failure is a UserError of one line: bytes that are not UTF-8, text that is not JSON, a key that an object has
twice, a number of thousands of digits, nesting beyond ``MAX_DEPTH``, half of a surrogate pair.
"""

import codecs
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import read_bytes, read_lines, shown

#: Deeper values are refused: nothing that is read here needs them, and they would exhaust Python's stack.
MAX_DEPTH = 100
#: Roles that messages may have, as the service takes them; a developer's message is a system message.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Messages = list[dict[str, str]]
_SHOWN_CHARS = 60
_HALF_OF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(UserError):
    """Text that is not JSON; the message does not name the file."""


def parse_json(text: str | bytes) -> Any:
    """The value of JSON text. Raises NotJson."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = _DECODER.decode(text)
    except NotJson:
        raise
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        what = error.msg.removesuffix(" at")
        raise NotJson(f"not JSON: {what} at {line}column {error.colno}") from None
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None
    except ValueError:  # Python's limit for turning digits into a number
        raise NotJson("not JSON: a number of thousands of digits") from None
    if text.count("[") + text.count("{") > MAX_DEPTH or _HALF_OF_PAIR.search(text):
        _check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise NotJson(f"not JSON that can be read: key {short_repr(twice)} is given twice, expected once")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_TOO_DEEP = f"not JSON that can be read: nested too deeply, expected at most {MAX_DEPTH} levels"


def parse_object(text: str | bytes, expected: str = "an object") -> dict[str, Any]:
    """The JSON object in ``text``. Raises UserError, saying what was ``expected``, for any other value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise UserError(f"expected {expected}, got {kind_of(value)}")
    return value


def read_json(path: Path, *, key: str = "", expected: str = "") -> Any:
    """The value in a JSON file. Raises UserError, naming the file."""
    text = read_bytes(path, key=key, expected=expected).removeprefix(codecs.BOM_UTF8)
    with placed(f"{key}: {shown(path)}" if key else shown(path), expected):
        return parse_json(text)


def numbered(lines: Iterable[bytes], start: int = 1) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from ``start``, without a byte order mark before the first."""
    for number, line in enumerate(lines, start):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield number, text


def read_rows(
    path: Path, *, key: str = "", expected: str = "", row: str = "an object"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its place ``FILE:LINE``. Raises UserError, naming the place.

    ``expected`` says what the file should be, ``row`` what an object.
    """
    for number, line in numbered(read_lines(path, key=key, expected=expected)):
        place = f"{shown(path)}:{number}"
        with placed(place, row):
            value = parse_object(line, row)
        yield place, value


def read_whole_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file up to the first line that is none, such as one that a killed process left unfinished.

    Raises UserError if the file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    for _, line in numbered(read_lines(path)):
        try:
            rows.append(parse_object(line))
        except UserError:
            break
    return rows


@contextmanager
def placed(place: str, expected: str = "") -> Iterator[None]:
    """Put the place in front of a UserError's message; append what was ``expected`` if the message does not say so."""
    try:
        yield
    except UserError as error:
        hint = f"; expected {expected}" if expected and "expected" not in str(error) else ""
        raise UserError(f"{place}: {error}{hint}") from None


def messages_of(row: Mapping[str, Any], key: str = "messages") -> Messages:
    """The chat messages under ``key``, one at least. Raises UserError, naming the message."""
    value = row.get(key)
    if not isinstance(value, list) or not value:
        raise UserError(f"{key}: expected a list of objects with 'role' and 'content'")
    messages = []
    for number, message in enumerate(value, start=1):
        where = f"{key}: message {number}"
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserError(f"{where}: expected 'role' and 'content' in each message")
        role, content = message["role"], message["content"]
        if not isinstance(role, str) or role not in ROLES:
            raise UserError(f"{where}: role {short_repr(role)}: expected {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise UserError(f"{where}: content: expected a string, got {kind_of(content)}")
        messages.append({"role": ROLES[role], "content": content})
    return messages


def prompt_of(row: Mapping[str, Any]) -> Messages | None:
    """The messages of a row that holds ``prompt`` (a text, or messages) or ``messages``; None if it has neither."""
    if row.get("prompt") is None:
        return None if row.get("messages") is None else messages_of(row)
    if isinstance(row["prompt"], str):
        return [{"role": "user", "content": row["prompt"]}]
    if not isinstance(row["prompt"], list):
        raise UserError(f"prompt: expected a text or messages, got {kind_of(row['prompt'])}")
    return messages_of(row, "prompt")


def asked(messages: Messages) -> Messages:
    """Return ``messages`` as a prompt. Raises UserError unless the last one is a user's."""
    if messages[-1]["role"] != "user":
        raise UserError(
            f"the last message is of role {messages[-1]['role']!r}; expected the user's that the answer is to"
        )
    return messages


def text_of(row: Mapping[str, Any], key: str) -> str:
    """The string under ``key``. Raises UserError."""
    if not isinstance(row.get(key), str):
        got = kind_of(row[key]) if key in row else "no such key"
        raise UserError(f"{key}: expected a string, got {got}")
    text: str = row[key]
    return text


def by_dotted_key(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values in nested mappings, by keys such as ``a.b``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= by_dotted_key(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def kind_of(value: Any) -> str:
    """The kind of a JSON value, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def short_repr(value: Any) -> str:
    """A value for a message: its repr, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _check(value: Any) -> None:
    """Raise NotJson for nesting beyond MAX_DEPTH and for half of a surrogate pair, naming where that is."""
    level: list[tuple[str, Any]] = [("", value)]
    for _ in range(MAX_DEPTH + 1):
        inside: list[tuple[str, Any]] = []
        for path, each in level:
            if isinstance(each, dict):
                for key, item in each.items():
                    _check_text("a key", key)
                    inside.append((f"{path}.{key}" if path else key, item))
            elif isinstance(each, list):
                inside += [(f"{path}[{index}]", item) for index, item in enumerate(each)]
            elif isinstance(each, str):
                _check_text(path or "text", each)
        if not inside:
            return
        level = inside
    raise NotJson(_TOO_DEEP)


def _check_text(where: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotJson(f"{where}: character {error.start + 1} is half of a surrogate pair") from None
