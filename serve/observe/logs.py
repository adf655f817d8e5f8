"""Structured logs: one JSON object a line, each with the request that it is about. Ray Serve writes them (its
``LoggingConfig(encoding="JSON")``), with time, level, deployment and replica; what is here are the fields.

A request has one id: the client's, if it sends one in ``X-Request-Id``, or else Ray Serve's, whose proxy puts one
there before the Gateway sees the request, and the id into the response. It travels in every order (to the
Interpreter, to each Decoder), so that all lines about a request can be found in every actor's file.

What is logged is a closed list of fields. There is no field for a prompt, an answer or a key, and text from outside is
kept short and on its line.
"""

import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any

from serve.errors import ApiError

HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MOST_CHARS = 200

#: What a line may say besides its event and request.
FIELDS = frozenset(
    {
        "attempt",  # of a part of an answer, on one Decoder
        "code",  # of an error, as in its body
        "completion",  # the response object's id
        "endpoint",
        "finish_reason",
        "key",  # the name of an API key, never the key
        "method",
        "mode",
        "model",
        "num_choices",
        "path",  # a thread's, such as 2.0
        "prompt_tokens",
        "reason",
        "redispatches",
        "replica",
        "retry_after_s",
        "spills",
        "status",
        "steps",
        "stream",
        "threads",
        "tokens",
        "total_ms",
        "ttft_ms",
    }
)


def request_id(headers: Mapping[str, str]) -> str:
    """The id of the request with these headers, a new one if it has none. Raises ``ApiError`` 400 if it is no id."""
    given = headers.get(HEADER)
    if given is None:
        return str(uuid.uuid4())
    if not _ID.fullmatch(given):
        raise ApiError(
            "X-Request-Id: expected 1 to 128 letters, digits, '.', '_', ':' or '-', or none at all.",
            param="X-Request-Id",
            code="invalid_value",
        )
    return given


def log(
    logger: logging.Logger,
    event: str,
    request: str,
    level: int = logging.INFO,
    error: Exception | None = None,
    **fields: Any,
) -> None:
    """A line: ``event`` is its message and the rest its fields, with where ``error`` was raised if there is one.
    Raises ``ValueError`` for a field that is not in ``FIELDS``."""
    if unknown := sorted(fields.keys() - FIELDS):
        raise ValueError(
            f"{unknown[0]} is no field of a log line; expected one of {', '.join(sorted(FIELDS))}"
        )
    kept = {name: _plain(value) for name, value in fields.items() if value is not None}
    # Into the file only: Ray would format it again for the process's own output, and pass that on to the driver.
    kept["log_to_stderr"] = level >= logging.WARNING
    # Ray Serve puts the id of its own call into request_id: of the HTTP request in the Gateway, of any call elsewhere.
    logger.log(level, event, exc_info=error, extra={"request": request, **kept})


def _plain(value: Any) -> Any:
    """Numbers and booleans as they are; of anything else a short text on one line."""
    if isinstance(value, bool | int | float):
        return value
    text = "".join(c if c.isprintable() else "�" for c in str(value))
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
