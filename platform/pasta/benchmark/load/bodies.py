"""Makes hostile requests: bodies that no well-meaning client sends, each within the service's size limit.

A request follows from its number and the seed alone, so that one that was answered wrongly can be made again.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pasta.benchmark.load.grammars import REGEXES, costly_schema

#: The fields of each POST route, by its path.
Routes = Mapping[str, Sequence[str]]

_JSON = {"Content-Type": "application/json"}
_MESSAGES = [{"role": "user", "content": "Tell me about France, Japan and Kenya."}]
#: What the bodies of the known routes hold besides the model.
_VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": _MESSAGES,
        "max_tokens": 2,
        "seed": 1,
        "pasta": {"mode": "parallel"},
    },
    "/v1/completions": {"prompt": "The capital of France", "max_tokens": 2, "logprobs": 1, "stop": ["."]},
    "/tokenize": {"prompt": "The capital of France", "return_token_strs": True},
    "/detokenize": {"tokens": [5, 6, 7]},
}
#: JSON texts of values that are wrong for some field, or only just right.
_ITEMS = (
    *(
        "1",
        "-1",
        "1.5",
        "null",
        "true",
        '""',
        '"ab"',
        "[]",
        "{}",
        "[1]",
        '{"a":1}',
        "[[]]",
        "1e300",
        "1.2345e-300",
    ),
    *(
        "1" * 20,
        "9" * 99,
        "0.1",
        "1e999",
        '"\\u0000"',
        '{"role":"user","content":"a"}',
        '{"type":"text","text":"a"}',
    ),
)
_NUMBERS = (
    *(
        "1e999",
        "-1e999",
        "1e-400",
        "-0.0",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        "1.",
        ".5",
        "+1",
        "0x10",
        "1_0",
    ),
    *("9" * 20, "-" + "9" * 20, "9" * 100, "9" * 101, "1" + "0" * 5000, "0." + "3" * 5000, "1e" + "9" * 5000),
    *(
        "2147483648",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "1e18",
        "4.9e-324",
    ),
)
_CHARACTERS = (
    "a",
    "a ",
    "\\u0041",
    "\\n",
    '\\"',
    "\\\\",
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "\\ud83d\\ude00",
    "<",
    "\u0e01",
)
_HALVES = ("\\ud800", "\\udfff", "\\ud800\\ud800", "a\\udc00", "\\\\\\ud83d", "\\ud83d\\u0041")
_TYPES = (
    *(
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "",
    ),
    *("application/json; charset=utf-16", "application/json" * 200, "image/png", "text/event-stream", "*/*"),
)
#: How many copies of one large body arrive together, for some of them.
_COPIES = 8


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """A POST request to ``path``, sent so many times at once; ``kind`` says what is wrong with it."""

    kind: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    copies: int = 1


class _Maker:
    """Makes the parts of one request to one route."""

    def __init__(self, rng: random.Random, model: str, path: str, fields: Sequence[str], most: int) -> None:
        self.rng, self.fields = rng, fields
        self.valid = {"model": model, **_VALID.get(path, {})}
        #: What a body may have besides the valid part, with a field's name and some brackets.
        self.room = most - len(json.dumps(self.valid)) - 300

    def size(self) -> int:
        """A few bytes, a good many, or all that fit."""
        return min(self.room, self.rng.choice((100, 20_000, self.room)))

    def field(self) -> str:
        """Any field; every second time one that the route requires."""
        return self.rng.choice(self.fields if self.rng.random() < 0.5 else [*self.valid])

    def with_text(self, name: str, value: str) -> bytes:
        """The valid body with one field's value, as JSON text; at the beginning or at the end."""
        rest = json.dumps({key: other for key, other in self.valid.items() if key != name})[1:-1]
        parts = [f"{json.dumps(name)}:{value}", *([rest] if rest else [])]
        if self.rng.random() < 0.5:
            parts.reverse()
        return f"{{{','.join(parts)}}}".encode()

    def repeated(self, item: str, size: int, between: str = ",") -> str:
        return between.join([item] * max(1, size // (len(item.encode()) + len(between))))


# -- kinds -------------------------------------------------------------------------------------------------


def _list(m: _Maker) -> bytes:
    """A long list of something in any field."""
    return m.with_text(m.field(), f"[{m.repeated(m.rng.choice(_ITEMS), m.size())}]")


def _mixed_list(m: _Maker) -> bytes:
    """A list that is right up to its last items."""
    item, last = m.rng.choice(_ITEMS), m.rng.choice(_ITEMS)
    return m.with_text(m.field(), f"[{m.repeated(item, m.size())},{last}]")


def _nested(m: _Maker) -> bytes:
    before, after = m.rng.choice((("[", "]"), ('{"a":', "}"), ('{"anyOf":[', "]}"), ("[[],", "]")))
    depth = min(m.rng.choice((50, 200, 900, 990, 1100, 5000, 10**6)), m.room // (len(before) + len(after)))
    closed = depth if m.rng.random() < 0.8 else depth // 2
    return m.with_text(m.field(), before * depth + "1" + after * closed)


def _number(m: _Maker) -> bytes:
    return m.with_text(m.field(), m.rng.choice(_NUMBERS))


def _numbers(m: _Maker) -> bytes:
    """As many numbers as fit, of the slow kinds."""
    return m.with_text(m.field(), f"[{m.repeated(m.rng.choice(_NUMBERS), m.size())}]")


def _half(m: _Maker) -> bytes:
    half = m.rng.choice(_HALVES)
    shape = m.rng.choice(
        ('"{}"', '["{}"]', '{{"{}":1}}', '[{{"role":"user","content":"{}"}}]', '{{"a":["{}"]}}')
    )
    if m.rng.random() < 0.2:  # the name of an unknown field
        return m.with_text(m.field(), "1")[:-1] + f',"{half}":1}}'.encode()
    return m.with_text(m.field(), shape.format(half))


def _controls(m: _Maker) -> bytes:
    character = m.rng.choice(
        ("\\u0000", "\x00", "\x1b", "\x7f", "\u202e", "\ufeff", "\ufffe", "\\u001f", "\r", "\u2028")
    )
    return m.with_text(m.field(), f'"{m.repeated(character, m.size(), "")}"')


def _encoding(m: _Maker) -> bytes:
    """Bytes that are no UTF-8."""
    body = json.dumps(m.valid).encode()
    if m.rng.random() < 0.3:
        return body.decode().encode(m.rng.choice(("utf-16", "utf-32", "utf-16-le", "cp037")))
    bad = m.rng.choice(
        (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", m.rng.randbytes(64))
    )
    at = m.rng.randrange(len(body))
    return body[:at] + bad * m.rng.choice((1, 1000)) + body[at:]


def _duplicates(m: _Maker) -> bytes:
    """One field again and again, with other values."""
    name = json.dumps(m.field())
    pairs = f"{name}:{m.rng.choice(_ITEMS)},{name}:{m.rng.choice(_ITEMS)}"
    return m.with_text(m.field(), "1")[:-1] + f",{m.repeated(pairs, m.size())}}}".encode()


def _string(m: _Maker) -> bytes:
    text = m.repeated(m.rng.choice(_CHARACTERS), m.size(), "")
    shape = m.rng.choice(
        ('"{}"', '["{}"]', '[{{"role":"user","content":"{}"}}]', '{{"{}":1}}', '{{"a":"{}"}}')
    )
    return m.with_text(m.field(), shape.format(text))


def _unknown(m: _Maker) -> bytes:
    """Members that nobody knows: of the body, or of an object in a field."""
    count = m.size() // 12
    members = ",".join(f'"k{n}":{n % 10}' for n in range(count))
    if m.rng.random() < 0.5:
        return m.with_text(m.field(), "1")[:-1] + f",{members}}}".encode()
    return m.with_text(m.field(), m.rng.choice(("{{{}}}", "[{{{}}}]")).format(members))


def _schema(m: _Maker) -> bytes:
    return m.with_text(*costly_schema(m.rng))


def _regex(m: _Maker) -> bytes:
    text = m.rng.choice((*REGEXES, "a" * m.size(), "." * m.size()))
    if m.rng.random() < 0.3:
        return m.with_text("guided_choice", json.dumps([text[:2000]] * m.rng.choice((1, 256, 300))))
    if m.rng.random() < 0.5:
        return m.with_text("structured_outputs", json.dumps({"regex": text}))
    return m.with_text("guided_regex", json.dumps(text))


def _tables(m: _Maker) -> bytes:
    """Objects and lists of ids: as long as they may be, and much longer."""
    count = min(m.rng.choice((300, 512, 513, 70_000)), m.room // 12)
    table = ",".join(f'"{n}":{m.rng.choice(("1", "0.5", "-100", "101"))}' for n in range(count))
    ids = f"[{','.join(str(n % 4000) for n in range(count))}]"
    name, value = m.rng.choice(
        (
            ("logit_bias", f"{{{table}}}"),
            ("metadata", f"{{{table}}}"),
            ("stop_token_ids", ids),
            ("prompt", ids),
            ("tokens", ids),
        )
    )
    return m.with_text(name, value)


def _truncated(m: _Maker) -> bytes:
    whole = (
        m.rng.choice((_list, _string, _nested, _unknown))(m)
        if m.rng.random() < 0.5
        else json.dumps(m.valid).encode()
    )
    return whole[: m.rng.randrange(len(whole))]


def _mutated(m: _Maker) -> bytes:
    """The valid body with some of its bytes changed, left out or repeated."""
    body = bytearray(json.dumps(m.valid).encode())
    for _ in range(m.rng.randint(1, 4)):
        at = m.rng.randrange(len(body))
        part = m.rng.choice(
            (b"", bytes([m.rng.randrange(256)]), body[at : at + 8] * 2, b'"', b"}", b"[", b"9999", b"\\")
        )
        body[at : at + m.rng.randint(0, 3)] = part
    return bytes(body)


def _replaced(m: _Maker) -> bytes:
    """The valid body with any value in any field."""
    return m.with_text(m.field(), m.rng.choice(_ITEMS))


def _no_object(m: _Maker) -> bytes:
    return m.rng.choice(
        (
            b"",
            b" ",
            b"null",
            b"[]",
            b"1",
            b'"a"',
            b"{",
            b"}",
            b"{}",
            b"[" * m.size(),
            b" " * m.size(),
            b"\x00",
        )
    )


def _edges(m: _Maker) -> bytes:
    """A request that is right, with as much as is allowed: the service has to answer it."""
    likeliest = {"logprobs": True, "top_logprobs": 20} if "top_logprobs" in m.fields else {"logprobs": 5}
    chosen: dict[str, Any] = m.rng.choice(
        (
            {"n": 8, "max_tokens": 500, "ignore_eos": True, **likeliest},  # the answer: several MiB
            {"temperature": 2, "top_p": 1e-9, "min_p": 1, "top_k": 2**70, "repetition_penalty": 100},
            {
                "stream": True,
                "stream_options": {"include_usage": True},
                "pasta": {"events": True, "document": True},
            },
            {"stream": True, "guided_regex": "a{1000000}"},
            {
                "logit_bias": {str(n): 100 for n in range(300, 600)},
                "presence_penalty": 2,
                "frequency_penalty": -2,
            },
            {"max_tokens": 2**62},
            {"max_tokens": 0, "echo": True},
            {"min_tokens": 2**62},
            {"seed": -(2**63)},
            {"stop": ["a" * 100_000] * 4},
            {"user": "\x00" * 1000, "ignore_eos": True},
        )
    )
    return json.dumps({**m.valid, **chosen}).encode()


_KINDS: dict[str, Callable[[_Maker], bytes]] = {
    "a long list": _list,
    "a long list with another end": _mixed_list,
    "deep nesting": _nested,
    "a huge number": _number,
    "many slow numbers": _numbers,
    "half a surrogate pair": _half,
    "control characters": _controls,
    "no UTF-8": _encoding,
    "duplicate members": _duplicates,
    "a long string": _string,
    "unknown members": _unknown,
    "a costly schema": _schema,
    "a costly expression": _regex,
    "long tables": _tables,
    "a truncated body": _truncated,
    "a mutated body": _mutated,
    "another type": _replaced,
    "no object": _no_object,
    "the edges of what is right": _edges,
    "another content type": _replaced,
}
KINDS = tuple(_KINDS)


def hostile_request(number: int, seed: int, model: str, routes: Routes, most_bytes: int) -> HostileRequest:
    """Make the request of a number: kinds take turns, all else is drawn. Its body has ``most_bytes`` at most."""
    rng = random.Random(f"hostile:{seed}:{number}")
    kind = KINDS[number % len(KINDS)]
    able = [path for path, fields in routes.items() if "guided_json" in fields]
    path = rng.choice(sorted(able if able and _KINDS[kind] in (_schema, _regex, _edges) else routes))
    body = _KINDS[kind](_Maker(rng, model, path, routes[path], most_bytes))
    headers = dict(_JSON)
    if kind == "another content type":
        headers["Content-Type"] = rng.choice(_TYPES)
        headers |= rng.choice(
            ({}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Content-Encoding": "gzip"})
        )
    if rng.random() < 0.05:
        headers["X-Request-Timeout"] = rng.choice(
            ("nan", "-1", "1e999", "0", "a" * 5000, "0.001", "\u0663".encode().decode("latin-1"))
        )
    body = body[:most_bytes]
    copies = _COPIES if len(body) > most_bytes / 2 and rng.random() < 0.3 else 1
    return HostileRequest(kind, path, body, headers, copies)
