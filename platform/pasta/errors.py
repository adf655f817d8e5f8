"""The one exception family that a user can cause."""


class UserError(ValueError):
    """A user's mistake. The message is one line: what was given, what was expected, what to do.

    Entry points print it as ``error: …`` and exit with code 2; the HTTP gateway answers 400.
    """
