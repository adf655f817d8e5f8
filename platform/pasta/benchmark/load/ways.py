"""The two ways of answering that are compared: in parallel, and sequentially."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pasta.errors import UserError

Name = Literal["sequential", "parallel"]


@dataclass(frozen=True, slots=True)
class Way:
    """A model, and what the request's ``pasta`` says."""

    name: Name
    model: str
    pasta: Mapping[str, Any]


def find_ways(modes: Mapping[str, str]) -> dict[Name, Way]:
    """The ways of a service, given each model's mode: the first model of mode parallel, and against it the first of
    mode sequential, its baseline; without one the same model with its promises masked out.

    Raises ``UserError`` if no model decodes in parallel.
    """
    by_mode = {mode: name for name, mode in reversed([*modes.items()])}
    if "parallel" not in by_mode:
        raise UserError(f"models: {', '.join(modes)}: none has mode parallel, so there is nothing to compare")
    parallel = by_mode["parallel"]
    sequential = by_mode.get("sequential", parallel)
    return {
        "sequential": Way("sequential", sequential, {"mode": "sequential"}),
        "parallel": Way("parallel", parallel, {"mode": "parallel"}),
    }
