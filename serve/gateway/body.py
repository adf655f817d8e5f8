"""Reads a request's body: bytes within a deadline, then a JSON object whose shape is bounded before it is built.

Reading JSON holds the event loop, and a small body can name a great many values: ``[[],[],…`` takes twenty times its
size as Python objects. So the values of a body are counted in its bytes first.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from starlette.requests import Request

from serve.errors import ApiError, timed_out

#: Headers that browsers add to what a page sends.
_BROWSER_HEADERS = ("origin", "sec-fetch-site")
#: The most strings in a body, and the most objects and lists: far more than a conversation has. Python needs up to 750
#: bytes for an object. A body may have 3,000 objects and lists; a longer one may have one for every 75 of its bytes, up
#: to 10,000.
_MAX_STRINGS = 20_000
_CONTAINERS, _BYTES_A_CONTAINER, _MAX_CONTAINERS = 3_000, 75, 10_000
#: The same bounds for values, which take 50 bytes each: only token ids come in such numbers.
_VALUES, _BYTES_A_VALUE, _MAX_VALUES = 30_000, 5, 150_000
#: The most digits of a number: the time to read one grows with their square.
_MAX_DIGITS = 100
#: The most numbers with a fraction or an exponent: reading or writing one takes ten times as long as an integer.
_MAX_FRACTIONS = 10_000
#: The most members of one object: pydantic reports every unknown one.
_MAX_MEMBERS = 512
#: Bodies of up to so many bytes are read at once, in a fraction of a millisecond. Beyond the second bound reading may
#: take 50 ms.
_SMALL_BYTES, _LONG_BYTES = 4096, 65536
#: Sent with an answer to a request whose body was not read: else the server would go on receiving it, without a
#: deadline.
_END_CONNECTION = {"Connection": "close"}
# A string without an end matches up to the body's end: if the search failed there, it would begin anew at each quote.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# Turns every digit into 1. To search for one fixed text takes a tenth of the time of a pattern that may begin at every
# digit.
_AS_ONES = bytes.maketrans(b"023456789", b"1" * 9)
_LONG_NUMBER = b"1" * (_MAX_DIGITS + 1)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The longest beginning of a body in which all surrogates come in pairs.
_PAIRED = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)

T = TypeVar("T")


async def read_body(request: Request, most_bytes: int, within_s: float) -> bytes:
    """Read the body. Raises ``ApiError``: 413 if it is larger than ``most_bytes``, 408 if it takes longer than
    ``within_s`` seconds, 415 if it is compressed, or a web page sends it as something else than JSON.
    """
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise _unsupported("Content-Encoding", coding, "a body that is not compressed")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser sends JSON to another site only if that site agrees, and forms without asking. curl --data says that its
    # JSON is a form.
    if any(name in request.headers for name in _BROWSER_HEADERS) and kind != "application/json":
        raise _unsupported("Content-Type", kind or "none", "application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                body += piece
                if len(body) > most_bytes:
                    raise ApiError(
                        f"The body of your request is larger than {most_bytes} bytes.",
                        status=413,
                        code="request_too_large",
                        headers=_END_CONNECTION,
                    )
    except TimeoutError:
        error = timed_out(f"The body of your request took longer than {within_s:g} seconds to arrive.")
        error.headers |= _END_CONNECTION
        raise error from None
    return bytes(body)


def _unsupported(header: str, value: str, expected: str) -> ApiError:
    return ApiError(
        f"{header}: {value[:60]!r}, expected {expected}.",
        status=415,
        param=header,
        code="unsupported_media_type",
    )


class Turns:
    """Reads large bodies one at a time, and pauses after each for as long as reading it took. However many arrive at
    once, the event loop has half of its time for other requests, which wait for one body at most. Short bodies do not
    wait for long ones."""

    def __init__(self) -> None:
        self._short, self._long = asyncio.Lock(), asyncio.Lock()

    async def read(self, body: bytes, how: Callable[[bytes], T]) -> T:
        """Call ``how`` on the body when it is its turn; returns the result."""
        if len(body) <= _SMALL_BYTES:
            return how(body)
        turn = self._long if len(body) > _LONG_BYTES else self._short
        await turn.acquire()
        begun = time.perf_counter()
        try:
            return how(body)
        finally:
            asyncio.get_running_loop().call_later(time.perf_counter() - begun, turn.release)


class _TooLargeError(Exception):
    """JSON holds more than any request needs; the message says what."""


def read_object(
    body: bytes, what: str = "The body of your request", param: str | None = None
) -> dict[str, Any]:
    """Parse a JSON object. Raises ``ApiError`` 400, naming ``what``, if the body is none, or holds more values than any
    request needs. Also for a parameter ``param`` that is JSON as text."""
    try:
        text = body.decode("utf-8-sig")  # RFC 8259 wants UTF-8; json would guess at other encodings
        if text.lstrip()[:1] == "{":
            _check_shape(body)
            data = json.loads(
                text, parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_object
            )
            if _SURROGATE.search(body) and not _PAIRED.fullmatch(body):
                raise ValueError("it holds half of a surrogate pair, which is no character")
        else:
            data = None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(f"{what} is not valid JSON: {reason}.", param=param, code="invalid_json") from None
    except _TooLargeError as error:
        raise ApiError(f"{what} holds {error}.", param=param, code="request_too_large") from None
    if not isinstance(data, dict):
        raise ApiError(f"{what} is not a JSON object.", param=param, code="invalid_json")
    return data


def _check_shape(body: bytes) -> None:
    size = len(body)
    if not _too_many(body, body.count(b'"') // 2, size):
        return
    # Some of these characters may be inside strings: remove the strings, and count again. Stop after as many strings as
    # a body may have; ``subn`` would build a list of all.
    without, strings, at = bytearray(), 0, 0
    for string in islice(_STRING.finditer(body), _MAX_STRINGS + 1):
        without += body[at : string.start()]
        strings, at = strings + 1, string.end()
    without += body[at:]
    if found := _too_many(without, strings, size):
        raise _TooLargeError(found)


def _too_many(body: bytes | bytearray, strings: int, size: int) -> str:
    """Name what a body of ``size`` bytes has too much of, judged by its punctuation; empty if it has too much of
    nothing."""
    if strings > _MAX_STRINGS:
        return f"more than {_MAX_STRINGS} strings"
    containers = min(max(_CONTAINERS, size // _BYTES_A_CONTAINER), _MAX_CONTAINERS)
    if body.count(b"[") + body.count(b"{") > containers:
        return f"more than {containers} objects and lists"
    values = min(max(_VALUES, size // _BYTES_A_VALUE), _MAX_VALUES)
    if body.count(b",") > values:
        return f"more than {values} values"
    if _LONG_NUMBER in body.translate(_AS_ONES):
        return f"a number of more than {_MAX_DIGITS} digits"
    exponents = body.count(b"e") + body.count(b"E") - body.count(b"true") - body.count(b"false")
    if max(body.count(b"."), exponents) > _MAX_FRACTIONS:
        return f"more than {_MAX_FRACTIONS} numbers with a fraction or an exponent"
    return ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise _TooLargeError(f"an object with more than {_MAX_MEMBERS} members")
    return dict(pairs)


def _number(text: str) -> float:
    # 5.0 is an integer for JSON Schema, and for the languages that have one type of number.
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
