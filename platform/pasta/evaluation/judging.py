"""Judges the answers of an evaluation."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pasta.evaluation.prompts import EvalPrompt
from pasta.judges.config import JudgeSection
from pasta.judges.judge import Case, Judge, Verdict, judge_cases
from pasta.judges.make import Metered, check_asked, check_judge, make_judge, metered
from pasta.stages.records import Record

Judging = Metered[Sequence[Record], list[Record]]
#: Records that are judged together: an endpoint is asked about all of them at once.
JUDGED = 16
_UNJUDGED = Verdict(None, {"invalid": "the baseline has no answer to compare with"})


def check_prompts(section: JudgeSection, prompts: Iterable[EvalPrompt]) -> None:
    """Raise UserError if the judge's section is wrong, or if it cannot rate answers to these prompts."""
    check_judge(section)
    check_asked(section, (entry.prompt.messages for entry in prompts if entry.family is None))


def answer_judge(section: JudgeSection, work_dir: Path, api_key: str | None, baseline: str) -> Judging:
    """Make the judge. Returns a function that rates records and reports what it used."""
    judge = make_judge(section, work_dir, api_key)
    pairwise = section.kind != "grader"
    return metered(judge, lambda records: judge_answers(judge, records, baseline=baseline, pairwise=pairwise))


def judge_answers(judge: Judge, records: Sequence[Record], *, baseline: str, pairwise: bool) -> list[Record]:
    """Judge records; returns ``{"key", "verdicts": {method: {"quality", …}}}`` of each; a method that skipped a prompt
    has no verdict.

    Answers are judged as a user gets them, also those that a limit cut. ``pairwise`` judges compare with the baseline's
    answer, which has no verdict itself: its quality is 0.5 by definition. Equal texts of one prompt are judged once.
    """
    cases: list[Case | None] = []
    texts: list[dict[str, str]] = []
    for record in records:
        said = {name: answer["text"] for name, answer in record["answers"].items() if "text" in answer}
        asked = _asked(said, baseline, pairwise)
        cases.append(Case(record["messages"], said.get(baseline, ""), asked) if asked else None)
        texts.append(said)
    out = []
    for record, said, found in zip(records, texts, judge_cases(judge, cases), strict=True):
        rated = [name for name in said if not pairwise or name != baseline]
        shown = {name: found.get(said[name], _UNJUDGED).to_record() for name in rated}
        out.append({"key": record["key"], "verdicts": shown})
    return out


def _asked(said: dict[str, str], baseline: str, pairwise: bool) -> tuple[str, ...]:
    """The distinct texts of a prompt that the judge is shown."""
    if not pairwise:
        return tuple(dict.fromkeys(said.values()))
    if baseline not in said:
        return ()
    return tuple(dict.fromkeys(text for name, text in said.items() if name != baseline))
