"""Dataclasses that processes send each other, of which some may have older code, as in a rolling update."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that a process with older code may send, pickled: fields that it does not have yet get
    their defaults. So new fields go last, and have one. Fields that newer code has added are left out.

    The dataclasses in a message's fields must be messages too: each of them may gain fields.
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    made.__setstate__ = _set_state
    return made


def _set_state(received: Any, state: Sequence[Any]) -> None:
    """Set the values of a message that is unpickled, in the order of its fields."""
    known = fields(received)
    for each, value in zip(known, state, strict=False):
        object.__setattr__(received, each.name, value)
    for each in known[len(state) :]:
        value = each.default if each.default_factory is MISSING else each.default_factory()
        object.__setattr__(received, each.name, value)
