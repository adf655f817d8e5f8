"""The outcome of each method on each prompt, compared with the baseline. All metrics are computed from outcomes.

They are read from the records of an evaluation (``answers.jsonl``) and the verdicts on them (``verdicts.jsonl``).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.stages.records import Record
from pasta.statistics import geometric_mean

#: The baseline's quality under a pairwise judge, by definition.
PAIRWISE_BASELINE = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """One method's answer to one prompt.

    ``answer`` is None where the method skipped the prompt, and ``skipped`` says why. ``length`` is the tokens of the
    baseline's answer, None where nobody counted them. ``realised`` and ``theoretical`` are the speedups over the
    baseline, None unless both answers ended by themselves: the full time of an answer that was cut is unknown.
    ``quality`` is None where there is no valid verdict; ``invalid`` marks a verdict out of format, as opposed to none
    at all. ``verdict`` is the judge's whole verdict.
    """

    key: str
    messages: Sequence[Mapping[str, str]]
    family: str | None
    independent: bool | None
    skipped: str | None
    answer: Mapping[str, Any] | None
    length: int | None
    realised: float | None
    theoretical: float | None
    quality: float | None
    baseline_quality: float | None
    invalid: bool
    verdict: Mapping[str, Any]

    @property
    def cut(self) -> bool:
        """Whether there is an answer and a limit ended it."""
        return self.answer is not None and self.answer["finish_reason"] != "stop"

    @property
    def num_threads(self) -> int | None:
        """Threads of the answer, the main one counted; None where they are not known."""
        return len(self.answer["threads"] or ()) or None if self.answer is not None else None

    def speed(self, name: str) -> float | None:
        """The speedup of this name, ``realised`` or ``theoretical``."""
        return self.realised if name == "realised" else self.theoretical

    @property
    def quality_difference(self) -> float | None:
        """Quality minus the baseline's."""
        if self.quality is None or self.baseline_quality is None:
            return None
        return self.quality - self.baseline_quality


def outcomes_of(
    records: Iterable[Record], verdicts: Iterable[Record], *, baseline: str, methods: Iterable[str]
) -> dict[str, list[Outcome]]:
    """The outcomes of each method in the order of ``records``. A record that lacks a method adds nothing to it."""
    records = list(records)
    said = {record["key"]: record["verdicts"] for record in verdicts}
    pairwise = is_pairwise(said.values(), baseline)
    return {
        name: [
            _outcome(record, said.get(record["key"], {}), baseline, name, pairwise)
            for record in records
            if name in record["answers"]
        ]
        for name in methods
    }


def is_pairwise(verdicts: Iterable[Mapping[str, Any]], baseline: str) -> bool:
    """Whether the judge compared answers with the baseline's. It then did not judge the baseline's own answers, whose
    verdicts are missing or 0.5 without a note. One who counts statements compares nothing."""
    judged = False
    for by_method in verdicts:
        if by_method.get(baseline, {"quality": PAIRWISE_BASELINE}) != {"quality": PAIRWISE_BASELINE}:
            return False
        if any("total" in verdict for verdict in by_method.values()):
            return False
        judged |= any(name != baseline for name in by_method)
    return judged


def _outcome(
    record: Record, verdicts: Mapping[str, Any], baseline: str, name: str, pairwise: bool
) -> Outcome:
    base, answer = record["answers"].get(baseline) or {"skipped": "not answered"}, record["answers"][name]
    is_answered, has_base = "skipped" not in answer, "skipped" not in base
    # A skipped one has no finish_reason.
    comparable = all(entry.get("finish_reason") == "stop" for entry in (base, answer))
    timed = comparable and base["seconds"] and answer["seconds"]
    verdict = verdicts.get(name) or {}
    base_quality = (verdicts.get(baseline) or {}).get("quality")
    if pairwise and has_base:
        base_quality = PAIRWISE_BASELINE
    quality = base_quality if name == baseline else verdict.get("quality")
    return Outcome(
        key=record["key"],
        messages=record["messages"],
        family=record.get("family"),
        independent=record.get("independent"),
        skipped=answer.get("skipped"),
        answer=answer if is_answered else None,
        length=base["tokens"] or None if has_base else None,
        realised=realised_speedup(base, answer) if timed else None,
        theoretical=theoretical_speedup(base, answer) if comparable else None,
        quality=quality,
        baseline_quality=base_quality,
        invalid="quality" in verdict and verdict["quality"] is None,
        verdict=verdict,
    )


def realised_speedup(baseline: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """Median seconds of the baseline's record of a prompt over those of another's; both must be timed."""
    return statistics.median(baseline["seconds"]) / statistics.median(answer["seconds"])


def theoretical_speedup(baseline: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """Tokens of the baseline's record of a prompt over another's critical path (design section 3); None where one of
    them is unknown, as with an endpoint."""
    tokens, steps = baseline["tokens"], answer["critical_path"]
    return tokens / steps if tokens and steps else None


class RunningSpeedups:
    """Geometric means over all prompts that both methods ended by themselves, as records come in.

    They are of wall clocks if answers are timed, theoretical otherwise.
    """

    def __init__(self, baseline: str, *, is_timed: bool) -> None:
        self._baseline, self._is_timed = baseline, is_timed
        self._speedups: dict[str, list[float]] = {}

    def count(self, record: Record) -> None:
        """Add the answers to one prompt."""
        for method in record["answers"]:
            found = _outcome(record, {}, self._baseline, method, pairwise=False)
            speedup = found.realised if self._is_timed else found.theoretical
            if method != self._baseline and speedup is not None:
                self._speedups.setdefault(method, []).append(speedup)

    def means(self) -> dict[str, float]:
        """Each method's mean; none where nothing can be compared."""
        return {method: geometric_mean(values) for method, values in self._speedups.items()}

    def __str__(self) -> str:
        told = [f"{method} {mean:.2f}x" for method, mean in self.means().items()]
        return "  ".join([*told, *(["(theoretical)"] if told and not self._is_timed else [])])
