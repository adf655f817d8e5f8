"""Precision and recall of annotations, where the atlas knows which parts are independent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pasta.data.atlas.grading import grade_structure
from pasta.data.atlas.tasks import task_for_prompt
from pasta.lang import parse


@dataclass(slots=True)
class TruthTally:
    """Counts over annotated answers of the atlas; other records are ignored.

    Parts: ``num_true`` that the truth marks, ``num_marked`` that the annotations mark, ``num_right`` that both mark,
    each alone (two parts in one chunk count as none of them). Answers: ``num_dependent`` in which nothing is
    independent, and how many of them fork; ``num_reading`` that fork where something reads the parts, and how many of
    them have every sync in its place.
    """

    num_answers: int = 0
    num_true: int = 0
    num_marked: int = 0
    num_right: int = 0
    num_dependent: int = 0
    num_wrong_forks: int = 0
    num_reading: int = 0
    num_syncs_right: int = 0

    def add(self, messages: Sequence[Mapping[str, str]], annotated: str, answer: str) -> None:
        """Count one annotated answer."""
        task = task_for_prompt(messages[-1]["content"])
        if task is None or task.answer != answer:
            return
        found = grade_structure(task, parse(annotated), by="text")
        self.num_answers += 1
        self.num_true += found.independent_parts
        self.num_marked += found.annotated_parts + found.superfluous_parts
        self.num_right += found.annotated_parts
        if not found.independent_parts:
            self.num_dependent += 1
            self.num_wrong_forks += found.forks
        if found.forks and found.has_readers:
            self.num_reading += 1
            self.num_syncs_right += found.sync_right

    def marks(self) -> dict[str, float | None]:
        """Shares, or None where nothing was counted: ``precision`` of the marked parts, ``recall`` of the true ones,
        ``wrong_forks``, ``syncs_right``; and the number of answers."""
        return {
            "answers": self.num_answers,
            "precision": _share(self.num_right, self.num_marked),
            "recall": _share(self.num_right, self.num_true),
            "wrong_forks": _share(self.num_wrong_forks, self.num_dependent),
            "syncs_right": _share(self.num_syncs_right, self.num_reading),
        }


def marks_line(marks: Mapping[str, float | None]) -> str:
    """``TruthTally.marks`` in a few words."""
    named = {
        "precision": "of the marked parts are independent",
        "recall": "of the independent parts are marked",
        "wrong_forks": "of the dependent answers fork",
        "syncs_right": "of the answers that read parts wait for them",
    }
    return ", ".join(
        f"{share:.1%} {text}" for key, text in named.items() if (share := marks[key]) is not None
    )


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
