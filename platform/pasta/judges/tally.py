"""Counts verdicts and a judge's usage."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pasta.rows import read_json
from pasta.stages.records import Record, write_json

#: The file beside verdicts that says what they have cost so far.
USAGE = "usage.json"


class VerdictTally:
    """Adds up the verdicts in a ``directory``, invalid ones among them, and a judge's usage, which it keeps beside them
    for the run that goes on with them: it begins with what earlier runs have spent."""

    def __init__(self, directory: Path) -> None:
        self._judged = self._invalid = 0
        self._directory, self._usage = directory, counted_usage(directory)

    def count(self, verdicts: Iterable[Record]) -> None:
        """Verdicts ``{"quality", …}``; one without a quality is invalid."""
        for verdict in verdicts:
            self._judged += 1
            self._invalid += verdict["quality"] is None

    def spend(self, usage: Mapping[str, float]) -> None:
        """Add the usage of some verdicts (``Judge.usage``). Call it before they are kept: no later run asks for one
        that is there, or counts what it has cost."""
        for key, value in usage.items():
            self._usage[key] = self._usage.get(key, 0.0) + value
        if self._usage:
            write_json(self._directory / USAGE, self._usage)

    def __str__(self) -> str:
        told = "".join(
            f"  {key.removeprefix('judge_').replace('_', ' ')} {value:,.6g}"
            for key, value in self._usage.items()
            if value
        )
        return f"{self._invalid} of {self._judged} verdicts invalid{told}"

    def figures(self) -> dict[str, float]:
        """All verdicts, the invalid ones, and the usage."""
        return self._usage | {"judge_verdicts": float(self._judged), "judge_invalid": float(self._invalid)}


def counted_usage(directory: Path) -> dict[str, float]:
    """What the verdicts in a directory have cost in earlier runs; empty if nothing is written there."""
    path = directory / USAGE
    usage: dict[str, float] = read_json(path) if path.is_file() else {}
    return usage
