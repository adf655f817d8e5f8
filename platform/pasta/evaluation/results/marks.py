"""Compares what a method marks as independent with the atlas' ground truth: this explains its speed and its errors."""

from collections.abc import Sequence
from dataclasses import dataclass

from pasta.data.atlas import grade_structure, task_asked
from pasta.evaluation.results.outcomes import Outcome
from pasta.lang import parse
from pasta.statistics import Estimate, bootstrap_mean


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares with intervals over prompts; None where no prompt could tell.

    ``independent_marked``: of the independent parts of an answer, those that the method marks, one by one (two parts in
    one chunk count as none), whatever topics it gives them. ``wrong_forks``: of the answers in which nothing is
    independent, those that fork. ``syncs_right``: of the answers that fork where something reads the parts, those with
    every sync where it belongs.
    """

    independent_marked: Estimate | None
    wrong_forks: Estimate | None
    syncs_right: Estimate | None


def marks_of(outcomes: Sequence[Outcome]) -> Marks | None:
    """The marks of one method's answers; None without annotated answers to tasks of the atlas."""
    marked: list[float] = []
    forks: list[float] = []
    syncs: list[float] = []
    for outcome in outcomes:
        text = outcome.answer.get("annotated") if outcome.answer is not None else None
        if outcome.family is None or text is None or (task := task_asked(outcome.messages)) is None:
            continue
        found = grade_structure(task, parse(text), by="statements")
        if found.independent_parts:
            marked.append(found.annotated_parts / found.independent_parts)
        else:
            forks.append(float(found.forks))
        if found.forks and found.has_readers:
            syncs.append(float(found.sync_right))
    if not marked and not forks:
        return None
    return Marks(*(bootstrap_mean(values) if values else None for values in (marked, forks, syncs)))
