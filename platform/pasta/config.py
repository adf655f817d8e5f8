"""Typed, strict configuration: YAML files into dataclasses, and errors a user can act on.

A configuration is a (nested) dataclass or pydantic model. Nothing is guessed: unknown and repeated keys, missing
keys and values of another type are refused, each with one line. ``pasta.core_yaml`` reads the YAML.
"""

import dataclasses
import difflib
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from pasta.core_yaml import parse_yaml
from pasta.entrypoint import run_main
from pasta.errors import UserError, expected_by, first_line, one_line
from pasta.files import read_text, shown
from pasta.names import FREE_TEXT, check_name
from pasta.rows import MAX_DEPTH, short_repr

__all__ = [
    "ConfigError",
    "config_fingerprint",
    "load_config",
    "parse_config",
    "read_yaml",
    "run_main",
    "to_dict",
]

T = TypeVar("T")
Key = str | int

# pydantic's names of these errors, for dataclasses and for models.
UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")
MISSING_KEY = ("missing", "missing_argument")
_SHOWN_CHARS = 120
#: What YAML takes for something else at the beginning of a text.
_INDICATORS = frozenset("*&!%@`")


class ConfigError(UserError):
    """A configuration that cannot be used; the message names file, key, value and what was expected. ``mistake`` is
    the message without where, and without how many others there are; empty for what cannot be read."""

    mistake = ""


def load_config(path: str | os.PathLike[str], cls: type[T], overrides: Sequence[str] = ()) -> T:
    """Read the YAML file ``path`` into ``cls``, with ``overrides`` of the form ``a.b=value`` applied on top.

    The values of overrides are YAML too (``lr=2e-3``, ``layers=[1, 2]``), without comments; a number in a key is an
    index into a list. Raises ConfigError for anything that is not exactly what ``cls`` declares. Text and paths are one
    line each, but for what is marked as FREE_TEXT.
    """
    name, read = os.fspath(path), read_yaml(path)
    try:
        return _checked(read, overrides, cls, name, name)
    except ConfigError as error:
        if not error.mistake:
            raise
        mistake = error.mistake
    # The file is wrong if it has this mistake without overrides, or else the override that it comes with.
    for count in range(len(overrides)):
        try:
            _checked(read, overrides[:count], cls, name, name)
        except ConfigError as error:
            if error.mistake == mistake:
                break
    else:
        count = len(overrides)
    source = f"override {short_repr(overrides[count - 1])}" if count else name
    return _checked(read, overrides, cls, name, source)


def parse_config(data: Mapping[str, Any], cls: type[T], source: str) -> T:
    """Validate plain ``data`` (as read from YAML or JSON) into ``cls``; ``source`` is named in errors."""
    adapter = TypeAdapter(cls)
    numbers = ((key, value) for key, value in leaves(data) if isinstance(value, float))
    odd = next((each for each in numbers if not math.isfinite(each[1])), None)
    if odd is not None and odd[1] != math.inf:
        raise _not_finite(*odd, source)
    try:
        # Through JSON, because strict validation takes a list for a tuple and a string for a path only from there.
        return adapter.validate_json(json.dumps(_spelled(data)), strict=True, extra="forbid")
    except ValidationError as error:
        if odd is not None:
            raise _not_finite(*odd, source) from None
        raise _explain(error, data, cls, source) from None
    except (TypeError, ValueError, RecursionError) as error:
        # json.dumps: what no YAML file of plain values contains
        raise ConfigError(f"{source}: {first_line(error)}; expected plain values") from None


def _checked(read: Mapping[str, Any], overrides: Sequence[str], cls: type[T], file: str, source: str) -> T:
    """What ``read`` is with these overrides. Names are checked, and ``source`` is named for a mistake."""
    data = _own(read)
    for override in overrides:
        _apply(data, override, file)
    for key, text in _names(data, cls):
        try:
            check_name(text)
        except ValueError as error:
            raise _wrong(source, f"{key}: {error}") from None
    return parse_config(data, cls, source)


def _own(value: Any) -> Any:
    """A copy of plain values in which nothing stands in two places, as what an alias names does: an override changes
    one place."""
    if isinstance(value, Mapping):
        return {key: _own(each) for key, each in value.items()}
    return [_own(each) for each in value] if isinstance(value, list) else value


def _wrong(source: str, mistake: str, more: str = "") -> ConfigError:
    error = ConfigError(one_line(f"{source}: {mistake}{more}"))
    error.mistake = mistake
    return error


def _spelled(value: Any) -> Any:
    """``value`` with infinity spelled as the word that some keys take for it: no plain number is infinite."""
    if isinstance(value, Mapping):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return "inf" if isinstance(value, float) and value == math.inf else value


def _not_finite(key: str, value: float, source: str) -> ConfigError:
    return _wrong(source, f"{key}: expected a finite number, got {value}")


def read_yaml(path: str | os.PathLike[str], *, may_be_empty: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError if there is none (unless it ``may_be_empty``), or it is not a
    mapping, or not YAML."""
    name = os.fspath(path)
    try:
        data = parse_yaml(read_text(Path(path), expected="a YAML configuration"), shown(path))
    except UserError as error:
        raise ConfigError(str(error)) from None
    if data is None and may_be_empty:
        return {}
    if data is None:
        raise ConfigError(f"{name}: is empty; expected a mapping of keys to values")
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: expected a mapping of keys to values, got {short_repr(data)}")
    return data


def to_dict(config: Any) -> dict[str, Any]:
    """``config`` as plain values (paths as strings, tuples as lists), ready for JSON, YAML or a tracker."""
    plain = to_jsonable_python(config, inf_nan_mode="constants")
    assert isinstance(plain, dict), "a configuration is a dataclass, a model or a mapping"
    return plain


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value in nested mappings and lists, and those that are empty, with its key, dotted as on a command
    line."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(inner, Mapping) and inner:
        for name, each in inner.items():
            yield from leaves(each, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def config_fingerprint(config: Any) -> str:
    """A SHA-256 (hex) of the values of ``config``: equal for equal values, whatever the order of the keys."""
    canonical = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _apply(data: dict[str, Any], override: str, source: str) -> None:
    """Set one ``a.b=value`` in ``data``."""
    dotted, separator, text = override.partition("=")
    keys = dotted.strip().split(".")
    named = f"override {short_repr(override)}"
    if not separator or not all(keys) or len(keys) > MAX_DEPTH:
        raise ConfigError(f"{named}: expected key=value, such as optimisation.learning_rate=2e-3")
    try:
        value = parse_yaml(text, named)
    except UserError as error:
        hint = ""
        if text[:1] in _INDICATORS:
            quoted = f"--set '{dotted}=\"{text}\"'"
            hint = f"; expected text that begins with {text[0]!r} in quotes: {quoted}"
        raise ConfigError(f"{error}{hint}") from None
    if "#" in text and _ends_in_comment(text, value):
        raise ConfigError(
            f"{named}: '#' begins a comment, expected none; a text that holds it goes in quotes: --set '{dotted}=\"…\"'"
        )
    target: Any = data
    for depth, key in enumerate(keys):
        if isinstance(target, list) and key in map(str, range(len(target))):
            index: Key = int(key)
        elif isinstance(target, dict):
            index = key
        else:
            parent = ".".join(keys[:depth])
            raise ConfigError(
                f"{named}: {parent!r} in {source} is {short_repr(target)}, which has no {key!r}"
            )
        if depth == len(keys) - 1:
            target[index] = value
            return
        if isinstance(target, dict) and target.get(index) is None:
            target[index] = {}
        target = target[index]


def _ends_in_comment(text: str, value: Any) -> bool:
    """Whether ``text``, which is YAML for ``value``, ends in a comment: more text behind it then changes nothing."""
    try:
        return bool(parse_yaml(f"{text}x", "") == value)
    except UserError:
        return False


def _explain(error: ValidationError, data: Any, cls: Any, source: str) -> ConfigError:
    """One line for the first thing that is wrong."""
    # A misspelt key is often a missing one too: the misspelling explains both.
    first, *others = sorted(error.errors(include_url=False), key=lambda e: e["type"] not in UNKNOWN_KEY)
    keys = _path(first["loc"], data, missing=first["type"] in MISSING_KEY)
    dotted = ".".join(map(str, keys))
    if first["type"] in UNKNOWN_KEY:
        *parents, unknown = keys
        known = _fields_at(cls, parents)
        close = difflib.get_close_matches(str(unknown), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        place = f"{'.'.join(map(str, parents))}: " if parents else ""
        message = f"{place}unknown key {short_repr(str(unknown))} ({hint})"
    elif first["type"] in MISSING_KEY:
        message = f"missing key {dotted!r}"
    elif first["type"] in ("value_error", "assertion_error"):
        reason = str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
        message = f"{dotted}: {reason}" if dotted else reason
    else:
        # A value of several types has a mistake for each.
        either = [each for each in others if _path(each["loc"], data, missing=False) == keys]
        others = [each for each in others if each not in either]
        said = dict.fromkeys(expected_by(each["msg"]) for each in (first, *either))
        expected = " or ".join(said).replace("an object", "a mapping of keys to values")
        message = f"{dotted}: expected {expected}, got {short_repr(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    return _wrong(source, _with_texts_cut(message, data), more)


def _with_texts_cut(message: str, value: Any) -> str:
    """``message`` with long texts of plain values cut."""
    if isinstance(value, Mapping | list):
        for each in [*value, *value.values()] if isinstance(value, Mapping) else value:
            message = _with_texts_cut(message, each)
    elif isinstance(value, str) and len(value) > _SHOWN_CHARS:
        short = value[: _SHOWN_CHARS - 1] + "…"
        message = message.replace(repr(value), repr(short)).replace(value, short)
    return message


def _names(value: Any, kind: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in plain values that is declared as text or a path, with its dotted key, and keys of any name."""
    for option in _options(kind):
        fields = _fields(option)
        arguments = [argument for argument in typing.get_args(option) if argument is not Ellipsis]
        if isinstance(value, str) and option in (str, Path):
            yield path, value
        elif isinstance(value, Mapping):
            if not fields and arguments and arguments[-1] is not Any:
                yield from ((path, key) for key in value)
            for key, each in value.items():
                inner = fields.get(key) if fields else (arguments or [Any])[-1]
                yield from _names(each, inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list) and arguments:
            for index, each in enumerate(value):
                yield from _names(each, arguments[-1], f"{path}.{index}")


def _path(loc: Sequence[Key], data: Any, missing: bool) -> list[Key]:
    """The keys of a pydantic location that are in ``data``: the names of union members and the like are not."""
    keys: list[Key] = []
    here = data
    for position, key in enumerate(loc):
        if _has(here, key):
            here = here[key]
        elif not (missing and position == len(loc) - 1):
            continue
        keys.append(key)
    return keys


def _has(value: Any, key: Key) -> bool:
    if isinstance(value, list):
        return isinstance(key, int) and key < len(value)
    return isinstance(value, Mapping) and key in value


def _fields_at(cls: Any, keys: Sequence[Key]) -> list[str]:
    """Names of the fields that the (possibly nested) class at ``keys`` below ``cls`` declares."""
    kinds = [cls]
    for key in keys:
        kinds = [inner for kind in kinds for inner in _descend(kind, key)]
    return sorted({name for kind in kinds for name in _fields(kind)})


def _descend(kind: Any, key: Key) -> list[Any]:
    found = []
    for option in _options(kind):
        fields = _fields(option)
        arguments = [a for a in typing.get_args(option) if a is not Ellipsis]
        if isinstance(key, str) and key in fields:
            found.append(fields[key])
        elif arguments:  # list[X], tuple[X, ...], dict[str, X]
            found.append(arguments[-1])
    return found


def _options(kind: Any) -> list[Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return [option for argument in typing.get_args(kind) for option in _options(argument)]
    if origin is typing.Annotated:
        return [] if FREE_TEXT in kind.__metadata__ else _options(typing.get_args(kind)[0])
    return [kind]


def _fields(kind: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for option in _options(kind):
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            hints = typing.get_type_hints(option, include_extras=True)
            fields |= {field.name: hints[field.name] for field in dataclasses.fields(option) if field.init}
        elif isinstance(option, type) and issubclass(option, BaseModel):
            fields |= {name: info.annotation for name, info in option.model_fields.items()}
    return fields
