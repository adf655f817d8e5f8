"""Schemas and regular expressions that are short, but large when compiled."""

import json
import random
from typing import Any

_STRUCTURED = ("guided_json", "structured_outputs", "response_format")
#: Expressions that backtrack, explode or are none.
REGEXES = (
    "(a+)+b",
    "(a|a)*b",
    "([ab]*a[ab]{20}){20}",
    "((a{100}){100}){100}",
    ".{0,5000}x.{5000}",
    r"(\w|\p{L}){1,5000}",
    "(?=a)b",
    r"(a)\1",
    "[",
    "(" * 5000,
    "(a|b|c)*" * 3000,
    "|".join(map(str, range(12_000))),
    "a{999999999}",
    "\\u0000",
)


def costly_schema(rng: random.Random) -> tuple[str, str]:
    """A request's parameter, as JSON text, with a schema that costs more to compile than its length suggests."""
    pattern = rng.choice(REGEXES)
    depth, width = rng.choice(((7, 3), (12, 2), (200, 1), (2, 80))), rng.choice((50, 300, 2000))
    made: Any = rng.choice(
        (
            lambda: _tree(*depth, rng.choice(("anyOf", "allOf", "oneOf"))),
            lambda: {"enum": [f"x{n}" for n in range(width * 4)]},
            lambda: {"type": "string", "pattern": pattern},
            lambda: {"patternProperties": {f"^(a|b){{{n}}}$": {"type": "string"} for n in range(width)}},
            lambda: {
                "properties": {f"p{n}": {"type": "string"} for n in range(width)},
                "additionalProperties": False,
            },
            lambda: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            lambda: {
                "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 3} for n in range(60)}
                | {"d60": {}},
                "$ref": "#/$defs/d0",
            },
            lambda: {"type": "array", "items": {"$ref": "#"}, "minItems": rng.choice((-1, 10**5, 10**18))},
            lambda: {"type": "string", "minLength": rng.choice((-1, 10**6, 10**18)), "maxLength": 1},
            lambda: {
                "type": rng.choice(("number", "integer", "nothing", 7, None, [])),
                "multipleOf": 1e-9,
                "minimum": 1e300,
            },
            lambda: {"allOf": [{"anyOf": [{"minLength": n}, {"maxLength": n}]} for n in range(width)]},
        )
    )()
    return _structured(rng, made)


def _tree(depth: int, width: int, word: str) -> Any:
    return {"type": "string"} if depth == 0 else {word: [_tree(depth - 1, width, word) for _ in range(width)]}


def _structured(rng: random.Random, schema: Any) -> tuple[str, str]:
    name = rng.choice(_STRUCTURED)
    wrapped = {
        "guided_json": schema,
        "structured_outputs": {"json": schema},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }[name]
    return name, json.dumps(wrapped)
