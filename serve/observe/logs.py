"""Writes structured logs: one JSON object a line, with the id of the request. Ray Serve formats them (its
``LoggingConfig(encoding="JSON")``) and adds time, level, deployment and replica.

A request has one id: the client's ``X-Request-Id``, or else one that Ray Serve's proxy adds before the Gateway sees
the request. Ray Serve returns it in the response. It travels in every order, to the Interpreter and to each Decoder,
so that a search for it finds all lines about a request, in every actor's file.

Only the fields listed here can be logged. None is for a prompt, an answer or a key, and text from outside is cut short
and kept on one line.
"""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

from pasta.errors import UserError, first_line
from serve.errors import ApiError

P = ParamSpec("P")

HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MOST_CHARS = 200

#: The fields that a line may have besides its event and request.
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
        "write_timeout_s",
    }
)


def request_id(headers: Mapping[str, str]) -> str:
    """The id in a request's headers, or a new one. Raises ``ApiError`` 400 for an invalid one."""
    given = headers.get(HEADER)
    if given is None:
        return str(uuid.uuid4())
    if not _ID.fullmatch(given):
        raise ApiError(
            "X-Request-Id: expected 1 to 128 letters, digits, '.', '_', ':' or '-', or none at all.",
            param="X-Request-Id",
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
    """Write a line: ``event`` is its message, ``fields`` its fields, with the stack trace of ``error`` if there is one.
    Raises ``ValueError`` for a field that is not in ``FIELDS``."""
    if unknown := sorted(fields.keys() - FIELDS):
        raise ValueError(
            f"{unknown[0]} is not a field of log lines; expected one of {', '.join(sorted(FIELDS))}"
        )
    kept = {name: _plain(value) for name, value in fields.items() if value is not None}
    # Below warnings to the file only: for stderr Ray would format it again, and forward it to the driver.
    kept["log_to_stderr"] = level >= logging.WARNING
    # Not named request_id: there Ray Serve writes the id of its own call, which is another one outside the Gateway.
    logger.log(level, event, exc_info=error, extra={"request": request, **kept})


def log_failed_start(
    logger: logging.Logger,
) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """Decorate the ``__init__`` of a deployment: if it fails, the replica's log says why, in one line.

    Ray Serve tells it at the end of stack traces, in `serve status` and in the log of its controller, which may be on
    another node. Not on stderr: there the controller's is.
    """

    def decorate(start: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @wraps(start)
        async def started(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                await start(*args, **kwargs)
            except Exception as error:
                why = str(error)
                if not isinstance(error, UserError):
                    why = ": ".join(dict.fromkeys([type(error).__name__, first_line(error)]))
                logger.error("cannot start: %s", why, extra={"log_to_stderr": False})
                raise

        return started

    return decorate


def _plain(value: Any) -> Any:
    """Keep numbers and booleans; shorten anything else to a text on one line."""
    if isinstance(value, bool | int | float):
        return value
    text = "".join(c if c.isprintable() else "�" for c in str(value))
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
