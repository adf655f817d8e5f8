"""Checks of a measurement's settings, each of which is an option of its command."""

from collections.abc import Collection
from typing import Any

from pasta.engine.section import SCRATCH
from pasta.errors import UserError
from pasta.sizes import EngineSizes
from pasta.stages.workers import MOST_THREADS

#: Of anything that is counted: more would never end.
_MOST = 1 << 20
_EXPECTED = {1: "a positive integer", 2: "at least 2"}


def option_of(name: str) -> str:
    """How the command line calls a field."""
    return "--" + name.replace("_", "-")


def check_least(settings: Any, least: int, *names: str, why: str = "") -> None:
    """Raise ``UserError``, naming the option, for a field that is below ``least`` (1 or 2), which ``why`` explains,
    or more than any measurement takes."""
    for name in names:
        if (value := getattr(settings, name)) < least:
            raise UserError(f"{option_of(name)}: {value}, expected {_EXPECTED[least]}{why}")
        most = MOST_THREADS if name.endswith("threads") else _MOST  # with far more torch crashes
        if value > most:
            raise UserError(f"{option_of(name)}: {value}, expected at most {most:,}")


def check_interval(settings: Any, *names: str) -> None:
    """``check_least`` of 2, which an interval needs."""
    check_least(settings, 2, *names, why=" (an interval needs as many)")


def check_answers(settings: Any, name: str, slot_tokens: int = EngineSizes().slot_tokens) -> None:
    """Raise ``UserError``, naming the option, for a longest answer that no slot holds after any prompt: the engine
    would cut it sooner, and say nothing."""
    most = slot_tokens - 1 - SCRATCH
    if (value := getattr(settings, name)) > most:
        raise UserError(
            f"{option_of(name)}: {value}, expected at most {most}: an engine's slot holds {slot_tokens} tokens, the "
            "prompt among them"
        )


def check_names(settings: Any, name: str, known: Collection[str]) -> None:
    """Raise ``UserError``, naming the option, unless a field holds some of ``known``, and nothing else."""
    chosen = getattr(settings, name)
    if wrong := sorted({*chosen} - {*known}) or ([""] if not chosen else []):
        raise UserError(f"{option_of(name)}: {wrong[0]!r}, expected some of {','.join(known)}")
