"""The machines that a stage's workers decode on, in a file beside what they make."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pasta.rows import read_json
from pasta.stages.records import write_json

#: The machine of each worker that decoded, as it was when it began: a JSON array.
MACHINES = "machines.json"


def read_machines(directory: Path) -> list[dict[str, Any]]:
    """The machines that a stage's records were made on; none if nothing is decoded yet."""
    path = directory / MACHINES
    machines: list[dict[str, Any]] = read_json(path) if path.exists() else []
    return machines


class Machines:
    """Keeps the machines of the workers of a stage ``name`` in ``MACHINES`` in ``directory``: those that earlier runs
    ``found`` there, and each new one.

    A machine is what ``describe_machine`` tells of it, with the number format of each model under ``formats``.
    """

    def __init__(self, name: str, directory: Path, found: Iterable[dict[str, Any]] = ()) -> None:
        self._name, self._directory, self._machines = name, directory, [*found]

    def add(self, machine: dict[str, Any]) -> None:
        """Keep a machine, unless it is kept already. Prints a warning when a model runs on it in another number format
        than on those before."""
        if machine in self._machines:
            return
        before = self.formats()
        self._machines.append(machine)
        write_json(self._directory / MACHINES, self._machines)
        differ = [
            f"{model} ({', '.join(names)})"
            for model, names in self.formats().items()
            if len(names) > 1 and names != before.get(model)
        ]
        if differ:
            print(
                f"{self._name}: workers have taken different number formats for {', '.join(differ)}: answers depend on "
                "who decodes them; name one in engine.dtype for the same everywhere",
                file=sys.stderr,
                flush=True,
            )

    def formats(self) -> dict[str, list[str]]:
        """The number formats that each model has run in, by the model's name here."""
        found: dict[str, set[str]] = {}
        for machine in self._machines:
            for model, name in machine.get("formats", {}).items():
                found.setdefault(model, set()).add(name)
        return {model: sorted(names) for model, names in found.items()}
