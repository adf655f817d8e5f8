"""Finds where each method fails: the task families in which it loses most, the reasons, and an example."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pasta.data.atlas import grade, task_asked
from pasta.evaluation.results.outcomes import Outcome
from pasta.statistics import grouped

#: The reasons of ``grade`` for a statement in the wrong place; any other reason means that the statement is false.
PLACES = ("missing", "not asked for", "cannot be read")
FALSE = "false"
ALL_PROMPTS = "all prompts"
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class FailureExample:
    """An answer that shows a failure. ``said`` are the judge's remarks, one a line."""

    key: str
    prompt: str
    answer: str
    finish_reason: str
    quality: float | None
    baseline_quality: float | None
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FamilyFailure:
    """A family in which a method does badly. Qualities are means over its judged prompts, ``reasons`` counts why
    statements are wrong (atlas tasks only)."""

    family: str
    prompts: int
    cut: int
    quality: float | None
    quality_difference: float | None
    reasons: dict[str, int]
    example: FailureExample


def failures_of(
    outcomes: Sequence[Outcome], *, is_baseline: bool, pairwise: bool = False, most: int = 3
) -> tuple[FamilyFailure, ...]:
    """The families in which a method's quality is lowest against the baseline's, the worst first.

    For the baseline itself, and where the baseline was not judged, those with the lowest quality; without any quality
    (as the baseline's under a ``pairwise`` judge), those with answers that were cut. Families without a loss are left
    out. Prompts without a family form one of their own.
    """
    is_judged = not (is_baseline and pairwise)
    answered = (outcome for outcome in outcomes if outcome.answer is not None)
    families = grouped(answered, lambda outcome: outcome.family or ALL_PROMPTS)
    losses = {name: _loss(members, is_baseline, is_judged) for name, members in families.items()}
    worst = sorted((name for name in families if losses[name] > _NOTHING), key=lambda name: -losses[name])
    return tuple(_failure(name, families[name], is_baseline, is_judged) for name in worst[:most])


def _loss(members: Sequence[Outcome], is_baseline: bool, is_judged: bool) -> float:
    """The loss of a family, 0 for none."""
    lost = [-o.quality_difference for o in members if o.quality_difference is not None]
    if lost and not is_baseline:
        return fmean(lost)
    missed = [1.0 - o.quality for o in members if o.quality is not None]
    return fmean(missed) if missed and is_judged else fmean(o.cut for o in members)


def _failure(family: str, members: Sequence[Outcome], is_baseline: bool, is_judged: bool) -> FamilyFailure:
    quality = [o.quality for o in members if o.quality is not None]
    differences = [o.quality_difference for o in members if o.quality_difference is not None]
    reasons = {why: count for why, count in wrong_by_reason(members).items() if count}
    worst = max(members, key=lambda o: (_loss([o], is_baseline, is_judged), o.cut))
    return FamilyFailure(
        family=family,
        prompts=len(members),
        cut=sum(o.cut for o in members),
        quality=fmean(quality) if quality else None,
        quality_difference=fmean(differences) if differences and not is_baseline else None,
        reasons=reasons,
        example=_example(worst),
    )


def wrong_by_reason(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Wrong statements of atlas answers by why they are wrong: ``PLACES`` and ``FALSE``."""
    reasons = dict.fromkeys((*PLACES, FALSE), 0)
    for outcome in outcomes:
        for _, why in wrong_statements(outcome):
            reasons[why if why in PLACES else FALSE] += 1
    return reasons


def wrong_statements(outcome: Outcome) -> list[tuple[str, str]]:
    """The wrong statements of an atlas answer, each with why; none for other prompts."""
    if outcome.family is None or outcome.answer is None or (task := task_asked(outcome.messages)) is None:
        return []
    return [(said, why) for said, ok, why in grade(task, outcome.answer["text"]).statements if not ok]


def _example(outcome: Outcome) -> FailureExample:
    assert outcome.answer is not None
    return FailureExample(
        key=outcome.key,
        prompt=outcome.messages[-1]["content"],
        answer=outcome.answer["text"],
        finish_reason=outcome.answer["finish_reason"],
        quality=outcome.quality,
        baseline_quality=outcome.baseline_quality,
        said=_said(outcome),
    )


def _said(outcome: Outcome) -> tuple[str, ...]:
    """The judge's remarks as lines of text."""
    note = outcome.verdict
    if outcome.quality is None:
        return (f"no valid verdict: {note['invalid']!r}",) if "invalid" in note else ()
    if "right" in note and "total" in note:
        wrong = [f"{why}: {said}" for said, why in wrong_statements(outcome)]
        return (f"{note['right']} of {note['total']} statements right", *wrong)
    return tuple(f"{key}: {_shown(value)}" for key, value in note.items() if key != "quality")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list | tuple) else str(value)
