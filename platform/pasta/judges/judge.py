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


def judge_records(judge: Judge, records: Sequence[Record]) -> list[Record]:
    """Judge sample records; returns ``{"id", "verdicts"}`` of each: a verdict ``{"quality", …}`` for each candidate,
    null for an unfit one. Equal texts of one prompt are judged once: such answers may differ in their tags only."""
    cases: list[Case] = []
    texts: list[list[str | None]] = []
    for record in records:
        if why_dropped(record):
            texts.append([])
            continue
        texts.append(
            [
                None if why_unfit(candidate) else strip(candidate["annotated"])
                for candidate in record["candidates"]
            ]
        )
        distinct = tuple(dict.fromkeys(text for text in texts[-1] if text is not None))
        if distinct:
            cases.append(Case(record["messages"], record["twin"]["text"], distinct))
    answers = iter(zip(cases, judge.judge(cases), strict=True) if cases else ())
    out = []
    for record, shown in zip(records, texts, strict=True):
        by_text: dict[str, Verdict] = {}
        if any(text is not None for text in shown):
            case, verdicts = next(answers)
            by_text = dict(zip(case.answers, verdicts, strict=True))
        judged = [None if text is None else _to_json(by_text[text]) for text in shown]
        out.append({"id": record["id"], "verdicts": judged})
    return out


def _to_json(verdict: Verdict) -> Record:
    return {"quality": verdict.quality, **verdict.note}
