"""The one exception family that a user can cause."""

_SHOWN_CHARS = 200


class UserError(ValueError):
    """A user's mistake. The message is one line: what was given, what was expected, what to do.

    Entry points print it as ``error: …`` and exit with code 2; the HTTP gateway answers 400.
    """


def first_line(error: BaseException, limit: int = _SHOWN_CHARS) -> str:
    """The first line of an error's message, cut to ``limit`` characters; the error's type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:limit]
