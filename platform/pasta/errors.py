"""The one exception family that a user can cause."""

import re

_SHOWN_CHARS = 200
_LINE_CHARS = 400


class UserError(ValueError):
    """A user's mistake. The message is one line: what was given, what was expected, what to do.

    Entry points print it as ``error: …`` and exit with code 2; the HTTP gateway answers 400.
    """


class CutShort(UserError):
    """Something outside has ended the work, such as the death of a process; the same command goes on with it."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, and those that it announces by a colon; cut if it is long. The error's type
    if it has no message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    count = next((n for n, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return " ".join(line.strip() for line in lines[:count])[:_SHOWN_CHARS]


def one_line(message: str) -> str:
    """``message`` on one line that is not too long: the middle, some long value, is left out."""
    line = " ".join(message.split())
    if len(line) <= _LINE_CHARS:
        return line
    end = _LINE_CHARS // 3
    return f"{line[: _LINE_CHARS - end - 3]} … {line[-end:]}"


def expected_by(message: str) -> str:
    """What a message of pydantic's says was expected, to stand behind that word."""
    said = message.removeprefix("Input should be ")
    if found := re.match(
        r"Input tag .* found using '(\w+)' does not match any of the expected tags: (.*)", said
    ):
        return f"a {found[1]} of {found[2]}"
    if found := re.match(r"Unable to extract tag using discriminator '(\w+)'", said):
        return f"an object with a {found[1]}"
    said = re.sub(r" after validation, not \S+$", "", said)
    return re.sub(r"^\w+ should (have|match) ", lambda verb: "" if verb[1] == "have" else "the ", said)
