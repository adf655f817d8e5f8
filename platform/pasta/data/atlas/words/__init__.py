"""The wordings of the atlas world, its sentences and what people ask: a table a file, data and no code."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_words(table: str) -> dict[str, Any]:
    """The table in ``TABLE.toml``: dictionaries in the order of the file, arrays as tuples."""
    text = resources.files(__package__).joinpath(f"{table}.toml").read_text(encoding="utf-8")
    words: dict[str, Any] = _frozen(tomllib.loads(text))
    return words


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
