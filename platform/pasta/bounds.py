"""Checks of values in configurations, for ``__post_init__``. ``None``, a key that is not set, is within all bounds."""

import dataclasses
from numbers import Integral
from typing import Any

from pasta.rows import short_repr


def check_integers(config: Any, *names: str) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are integers. For classes that are also
    constructed in Python, where nothing else checks types."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ValueError(f"{name} {value!r}: expected an integer")


def check_switches(config: Any, *names: str) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are booleans."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} {value!r}: expected true or false")


def check_positive(config: Any, *names: str) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are above 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            kind = "integer" if isinstance(value, int) else "number"
            raise ValueError(f"{name} {value}: expected a positive {kind}")


def check_at_most(config: Any, **limits: float) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are within their limits."""
    for name, most in limits.items():
        value = getattr(config, name)
        if value is not None and not value <= most:
            raise ValueError(f"{name} {value}: expected at most {most:,}")


def check_at_least(config: Any, **limits: float) -> None:
    """Raise ValueError, naming key and value, if these fields of ``config`` are below their limits."""
    for name, least in limits.items():
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} {value}: expected at least {least:g}")


def check_within(config: Any, **ranges: tuple[float, float]) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are in their ranges, ends included."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name} {value}: expected a number from {least:g} to {most:g}")


def check_not_negative(config: Any, *names: str) -> None:
    """Raise ValueError, naming key and value, unless these fields of ``config`` are 0 or more."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} {value}: expected 0 or more")


def check_unread(config: Any, why: str, *names: str) -> None:
    """Raise ValueError, naming key and value, for a field of ``config`` that is not at its default although nothing
    reads it. ``why`` says so in the message ("without annotator: syntactic")."""
    for field in dataclasses.fields(config):
        if field.name not in names:
            continue
        value, factory = getattr(config, field.name), field.default_factory
        if value != (field.default if factory is dataclasses.MISSING else factory()):
            shown = "" if dataclasses.is_dataclass(value) else f" {short_repr(value)}"
            raise ValueError(f"{field.name}{shown}: has no effect {why}")
