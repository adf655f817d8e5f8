"""Reads a request's body: bytes within a deadline, then a JSON object whose shape is bounded before it is built.

Reading JSON holds the event loop, and a small body can name a great many values: ``[[],[],…`` takes twenty times its
size as Python objects. So the values of a body are counted in its bytes first.
"""

import asyncio
import json
import re
from typing import Any

from starlette.requests import Request

from serve.errors import ApiError, timed_out

#: Headers that browsers add to what a page sends.
_BROWSER_HEADERS = ("origin", "sec-fetch-site")
#: The most objects and lists, and the most strings, in a body: far above what a conversation holds.
_MAX_CONTAINERS = 10_000
_MAX_STRINGS = 20_000
#: The most values in a body: token ids are the only reason for many.
_MAX_VALUES = 150_000
#: The most digits of a number: reading one takes the square of its length.
_MAX_DIGITS = 100
#: The most numbers with a fraction or an exponent: one takes ten times as long to read, or to write, as an integer.
_MAX_FRACTIONS = 10_000
#: The most members of one object: pydantic reports every one that it does not know.
_MAX_MEMBERS = 512
# One that has no end goes to the body's: a search that failed there would begin anew at each quote.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# All digits become ones: to look for one text takes a tenth of the time of a pattern that begins at every digit.
_AS_ONES = bytes.maketrans(b"023456789", b"1" * 9)
_LONG_NUMBER = b"1" * (_MAX_DIGITS + 1)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# As much of a body as has surrogates in pairs only.
_PAIRED = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)


async def read_body(request: Request, most_bytes: int, within_s: float) -> bytes:
    """Read the body. Raises ``ApiError``: 413 if it is larger than ``most_bytes``, 408 if it takes longer than
    ``within_s`` seconds, 415 if a web page sends it as something else than JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser sends JSON to another site only if that site agrees, and forms without asking. curl --data says that its
    # JSON is a form.
    if any(name in request.headers for name in _BROWSER_HEADERS) and kind != "application/json":
        raise ApiError(
            f"Content-Type: {kind[:60] or 'none'!r}, expected application/json.",
            status=415,
            param="Content-Type",
            code="unsupported_media_type",
        )
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
                    )
    except TimeoutError:
        raise timed_out(
            f"The body of your request took longer than {within_s:g} seconds to arrive."
        ) from None
    return bytes(body)


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ``ApiError`` 400 if the body is none, or holds more values than any request needs."""
    try:
        text = body.decode("utf-8-sig")  # RFC 8259 wants UTF-8; json would guess at other encodings
        if text.lstrip()[:1] == "{":
            _check_shape(body)
            data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
            if _SURROGATE.search(body) and not _PAIRED.fullmatch(body):
                raise ValueError("it holds half of a surrogate pair, which is no character")
        else:
            data = None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(
            f"The body of your request is not valid JSON: {reason}.", code="invalid_json"
        ) from None
    if not isinstance(data, dict):
        raise ApiError("The body of your request is not a JSON object.", code="invalid_json")
    return data


def _check_shape(body: bytes) -> None:
    if not _too_many(body, body.count(b'"') // 2):
        return
    # Some of these characters may be text. No more strings are looked for than a body may have.
    without, strings = _STRING.subn(b"", body, count=_MAX_STRINGS + 1)
    if what := _too_many(without, strings):
        raise ApiError(f"The body of your request holds {what}.", code="request_too_large")


def _too_many(body: bytes, strings: int) -> str:
    """Say what there is too much of, by its punctuation; empty if nothing is."""
    if strings > _MAX_STRINGS:
        return f"more than {_MAX_STRINGS} strings"
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        return f"more than {_MAX_CONTAINERS} objects and lists"
    if body.count(b",") > _MAX_VALUES:
        return f"more than {_MAX_VALUES} values"
    if _LONG_NUMBER in body.translate(_AS_ONES):
        return f"a number of more than {_MAX_DIGITS} digits"
    exponents = body.count(b"e") + body.count(b"E") - body.count(b"true") - body.count(b"false")
    if max(body.count(b"."), exponents) > _MAX_FRACTIONS:
        return f"more than {_MAX_FRACTIONS} numbers with a fraction or an exponent"
    return ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise ApiError(
            f"The body of your request has an object with more than {_MAX_MEMBERS} members.",
            code="request_too_large",
        )
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
