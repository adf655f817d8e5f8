"""Typed, strict configuration: YAML files into dataclasses, and errors a user can act on.

A configuration is a (nested) dataclass or pydantic model. Nothing is guessed: unknown and repeated keys, missing
keys and values of another type are refused, each with one line. YAML is read by version 1.2's rules, so that
``2e-3`` is a number, ``no`` is a string and ``010`` is ten.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import re
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from pasta.entrypoint import run_main
from pasta.errors import UserError

__all__ = ["ConfigError", "fingerprint", "load_config", "parse_config", "read_yaml", "run_main", "to_dict"]

T = TypeVar("T")
Key = str | int

# pydantic's names of these errors, for dataclasses and for models.
UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")
MISSING_KEY = ("missing", "missing_argument")


class ConfigError(UserError):
    """A configuration that cannot be used; the message names file, key, value and what was expected."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's core schema instead of 1.1's, and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # if it is not, the call below says so
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace(".inf", "inf").replace(".nan", "nan").lower())


def _configure(loader: type[_Loader]) -> None:
    loader.yaml_implicit_resolvers = {}
    # https://yaml.org/spec/1.2.2/#1032-tag-resolution, and `<<`, which everybody's YAML has.
    for tag, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        (
            "float",
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            list("-+0123456789."),
        ),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
    loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


_configure(_Loader)


def load_config(path: str | os.PathLike[str], cls: type[T], overrides: Sequence[str] = ()) -> T:
    """Read the YAML file ``path`` into ``cls``, with ``overrides`` of the form ``a.b=value`` applied on top.

    The values of overrides are YAML too (``lr=2e-3``, ``layers=[1, 2]``); a number in a key is an index into a list.
    Raises ConfigError for anything that is not exactly what ``cls`` declares.
    """
    name = os.fspath(path)
    data = read_yaml(path)
    for override in overrides:
        _apply(data, override, name)
    return parse_config(data, cls, name, overrides)


def parse_config(data: Mapping[str, Any], cls: type[T], source: str, overrides: Sequence[str] = ()) -> T:
    """Validate plain ``data`` (as read from YAML or JSON) into ``cls``; ``source`` is named in errors."""
    adapter = TypeAdapter(cls)
    try:
        # Through JSON, because strict validation takes a list for a tuple and a string for a path only from there.
        return adapter.validate_json(json.dumps(data), strict=True, extra="forbid")
    except ValidationError as error:
        raise ConfigError(_explain(error, data, cls, source, overrides)) from None
    except TypeError as error:  # json.dumps: something that no YAML file of plain values contains
        raise ConfigError(f"{source}: {error}; expected plain values") from None


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError if there is none, or it is not a mapping, or not YAML."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file; expected a YAML configuration") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{name}: cannot be read ({reason}); expected a YAML configuration") from None
    data = _parse_yaml(text, name)
    if data is None:
        raise ConfigError(f"{name}: is empty; expected a mapping of keys to values")
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: expected a mapping of keys to values, got {_show(data)}")
    return data


def to_dict(config: Any) -> dict[str, Any]:
    """``config`` as plain values (paths as strings, tuples as lists), ready for JSON, YAML or a tracker."""
    plain = to_jsonable_python(config, inf_nan_mode="constants")
    assert isinstance(plain, dict), "a configuration is a dataclass, a model or a mapping"
    return plain


def fingerprint(config: Any) -> str:
    """A SHA-256 (hex) of the values of ``config``: equal for equal values, whatever the order of the keys."""
    canonical = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise ConfigError(f"{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def _apply(data: dict[str, Any], override: str, source: str) -> None:
    """Set one ``a.b=value`` in ``data``."""
    dotted, separator, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not separator or not all(keys):
        raise ConfigError(f"override {override!r}: expected key=value, such as training.learning_rate=2e-3")
    value = _parse_yaml(text, f"override {override!r}")
    target: Any = data
    for depth, key in enumerate(keys):
        if isinstance(target, list) and key.isdigit() and int(key) < len(target):
            index: Key = int(key)
        elif isinstance(target, dict):
            index = key
        else:
            parent = ".".join(keys[:depth])
            raise ConfigError(
                f"override {override!r}: {parent!r} in {source} is {_show(target)}, which has no {key!r}"
            )
        if depth == len(keys) - 1:
            target[index] = value
            return
        if isinstance(target, dict) and target.get(index) is None:
            target[index] = {}
        target = target[index]


def _explain(error: ValidationError, data: Any, cls: Any, source: str, overrides: Sequence[str]) -> str:
    """One line for the first thing that is wrong."""
    # A misspelt key is often a missing one too: the misspelling explains both.
    first, *others = sorted(error.errors(include_url=False), key=lambda e: e["type"] not in UNKNOWN_KEY)
    keys = _path(first["loc"], data, missing=first["type"] in MISSING_KEY)
    dotted = ".".join(map(str, keys))
    for override in overrides:
        given = override.partition("=")[0].strip()
        if dotted == given or dotted.startswith(given + "."):
            source = f"override {override!r}"
    if first["type"] in UNKNOWN_KEY:
        *parents, unknown = keys
        known = _fields_at(cls, parents)
        close = difflib.get_close_matches(str(unknown), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        place = f"{'.'.join(map(str, parents))}: " if parents else ""
        message = f"{source}: {place}unknown key {str(unknown)!r} ({hint})"
    elif first["type"] in MISSING_KEY:
        message = f"{source}: missing key {dotted!r}"
    elif first["type"] in ("value_error", "assertion_error"):
        reason = str(first["ctx"]["error"]) if "ctx" in first else first["msg"]
        message = f"{source}: {dotted}: {reason}" if dotted else f"{source}: {reason}"
    else:
        expected = (
            first["msg"].removeprefix("Input should be ").replace("an object", "a mapping of keys to values")
        )
        message = f"{source}: {dotted}: expected {expected}, got {_show(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    return " ".join((message + more).split())


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
        return _options(typing.get_args(kind)[0])
    return [kind]


def _fields(kind: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for option in _options(kind):
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            hints = typing.get_type_hints(option)
            fields |= {field.name: hints[field.name] for field in dataclasses.fields(option) if field.init}
        elif isinstance(option, type) and issubclass(option, BaseModel):
            fields |= {name: info.annotation for name, info in option.model_fields.items()}
    return fields


def _show(value: Any, width: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"
