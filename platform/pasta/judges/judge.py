"""The interface of judges: cases in, verdicts out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pasta.data.prompts import Messages
from pasta.lang import strip
from pasta.stages.records import Record


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, the sequential twin's answer to it, and distinct answers to judge: texts as a user sees them."""

    messages: Messages
    baseline: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``quality`` from 0 to 1, higher is better, or None if the judge gave no usable answer; ``note`` says more
    (JSON-able)."""

    quality: float | None
    note: dict[str, Any] = field(default_factory=dict)

    def to_record(self) -> Record:
        """As JSON-able values."""
        return {"quality": self.quality, **self.note}


class Judge(Protocol):
    """Rates answers.

    Quality is the share of right statements for the grader, and for the others the probability that the answer is
    preferred to the baseline's. Equal texts get equal verdicts.
    """

    def judge(self, cases: Sequence[Case]) -> list[list[Verdict]]:
        """Return a verdict for each answer of each case. Raises UserError if it cannot judge at all."""

    def usage(self) -> dict[str, float]:
        """Return what judging has used so far, such as requests, tokens and cost."""


def why_unfit(candidate: Record) -> str:
    """Return why a candidate cannot be chosen: ``cut`` at the length limit, or ``empty``; "" if it can."""
    if candidate["finish_reason"] != "stop":
        return "cut"
    return "" if strip(candidate["annotated"]).strip() else "empty"


def why_dropped(record: Record) -> str:
    """Return why a whole record is not judged: its prompt was ``skipped``, or its twin's answer was cut; "" if it is
    judged."""
    if "skipped" in record:
        return "skipped"
    return "" if record["twin"]["finish_reason"] == "stop" else "baseline_cut"


def judge_cases(judge: Judge, cases: Sequence[Case | None]) -> list[dict[str, Verdict]]:
    """Judge all cases in one call; returns each one's verdicts by the text of the answer, none where there is no
    case."""
    asked = [case for case in cases if case is not None]
    judged = zip(asked, judge.judge(asked) if asked else (), strict=True)
    found = [dict(zip(case.answers, verdicts, strict=True)) for case, verdicts in judged]
    left = iter(found)
    return [{} if case is None else next(left) for case in cases]


def judge_records(judge: Judge, records: Sequence[Record]) -> list[Record]:
    """Judge sample records; returns ``{"id", "verdicts"}`` of each: a verdict ``{"quality", …}`` for each candidate,
    null for an unfit one. Equal texts of one prompt are judged once: such answers may differ in their tags only."""
    cases: list[Case | None] = []
    texts: list[list[str | None]] = []
    for record in records:
        candidates = [] if why_dropped(record) else record["candidates"]
        shown = [None if why_unfit(each) else strip(each["annotated"]) for each in candidates]
        distinct = tuple(dict.fromkeys(text for text in shown if text is not None))
        cases.append(Case(record["messages"], record["twin"]["text"], distinct) if distinct else None)
        texts.append(shown)
    return [
        {
            "id": record["id"],
            "verdicts": [None if text is None else found[text].to_record() for text in shown],
        }
        for record, shown, found in zip(records, texts, judge_cases(judge, cases), strict=True)
    ]
