"""Counts verdicts and a judge's usage."""

from collections.abc import Iterable, Mapping

from pasta.stages.records import Record

#: The file beside verdicts that says what they have cost so far.
USAGE = "usage.json"


class VerdictTally:
    """Adds up verdicts, invalid ones among them, and a judge's usage."""

    def __init__(self) -> None:
        self._judged = self._invalid = 0
        self._usage: dict[str, float] = {}

    def count(self, verdicts: Iterable[Record]) -> None:
        """Verdicts ``{"quality", …}``; one without a quality is invalid."""
        for verdict in verdicts:
            self._judged += 1
            self._invalid += verdict["quality"] is None

    def spend(self, usage: Mapping[str, float]) -> None:
        """Add the usage of some verdicts (``Judge.usage``)."""
        for key, value in usage.items():
            self._usage[key] = self._usage.get(key, 0.0) + value

    @property
    def usage(self) -> dict[str, float]:
        """The usage added so far."""
        return dict(self._usage)

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
