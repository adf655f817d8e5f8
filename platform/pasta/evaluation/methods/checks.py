"""What is wrong with the methods of an evaluation, said before any weights are read. Needs no torch."""

from collections.abc import Mapping
from typing import Any

from pasta.candidates.checks import check_model, check_vocabularies
from pasta.errors import UserError
from pasta.evaluation.config import MethodSection, SotSection


def check_methods(
    methods: Mapping[str, MethodSection], baseline: str, num_slots: int, num_workers: int = 1
) -> None:
    """Raise UserError, one line, for a mistake in the methods that shows without weights or a request.

    ``num_slots`` is how many requests an engine decodes at once; ``num_workers`` share an endpoint's limits.
    """
    for name, section in methods.items():
        _check_at_once(name, section, num_slots, num_workers)
    tokenizers: dict[str, Any] = {}
    first = ""
    # The baseline first: the others are compared with it.
    for name in sorted(methods, key=lambda name: name != baseline):
        source, key = methods[name].model, f"methods.{name}.model"
        if source is None or source in tokenizers:
            continue
        tokenizers[source] = check_model(key, source)
        if first:
            check_vocabularies(tokenizers[first], first, tokenizers[source], source, key)
        first = first or source


def _check_at_once(name: str, section: MethodSection, num_slots: int, num_workers: int) -> None:
    """Check that each worker can decode at once what a method asks for at once: points that wait would distort the
    time."""
    needed, what = 1, f"a request of method {name!r}"
    if section.kind == "sot":
        needed = (section.sot or SotSection()).words.max_points
        what = f"the most points of a skeleton that method {name!r} decodes at once"
    key, room = "engine.num_slots", num_slots
    if section.endpoint is not None:
        key, room = f"methods.{name}.endpoint.concurrency", section.endpoint.concurrency
        needed *= num_workers
        if num_workers > 1:
            what += f", for each of {num_workers} workers (workers.num_workers)"
    if room < needed:
        raise UserError(f"{key} {room}: expected at least {needed}, {what}")
