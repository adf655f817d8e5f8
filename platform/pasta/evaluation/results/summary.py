"""Summarises an evaluation: each method's speed, quality and structure, over all prompts and over groups of them.

Means of speedups are geometric, all others arithmetic; intervals are 95% percentile bootstraps over prompts
(``pasta.statistics``). Speedups are over prompts that baseline and method both ended by themselves, quality is
over all answers with a valid verdict, and everything else over all answers.
"""

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pasta.evaluation.config import MethodSection
from pasta.evaluation.results.fronts import PAIRWISE_REFERENCE, REFERENCE, Area, areas_of
from pasta.evaluation.results.marks import Marks, marks_of
from pasta.evaluation.results.outcomes import Outcome, is_pairwise, outcomes_of
from pasta.evaluation.results.pareto import Domination, LineComparison, compare_lines, dominations, on_front
from pasta.evaluation.results.win_rate import WinRates, preferences_of, win_rates
from pasta.stages.records import Record
from pasta.statistics import Estimate, bootstrap, bootstrap_mean, grouped, ratio_of_sums

SpeedName = Literal["realised", "theoretical"]
_TEXT = "text"  # the only kind of token that is not overhead
_LENGTH_STEPS = (50, 75)  # bins of answer length end at these numbers of tokens times powers of two


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One method on some of the prompts; an estimate is None where nothing was measured."""

    name: str
    prompts: int
    realised: Estimate | None
    theoretical: Estimate | None
    quality: Estimate | None
    quality_difference: Estimate | None

    def speed(self, name: SpeedName) -> Estimate | None:
        """The speedup of this name."""
        return self.realised if name == "realised" else self.theoretical


@dataclass(frozen=True, slots=True)
class StructureSummary:
    """How answers were decoded.

    ``threads``, ``tokens`` and ``critical_path`` (steps) are means an answer, ``budget`` the mean tokens an answer by
    kind; ``mean_lanes`` is threads that decode, over all steps; ``waited`` the share of steps in which the main thread
    waits at a sync; ``overhead`` the share of tokens that are no text of the answer; ``ttft_s`` the median of seconds
    to the first token. None where it is unknown (an endpoint reports no steps).
    """

    tokens: float
    budget: dict[str, float]
    overhead: float
    critical_path: float | None
    threads: float | None
    mean_lanes: float | None
    waited: float | None
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class MethodSummary(GroupSummary):
    """One method on all prompts it was given: ``skipped`` of them got no answer, ``cut`` one that a limit ended,
    ``fallbacks`` one in plain sequential decoding (Skeleton-of-Thought without a usable skeleton), ``invalid`` no
    verdict in the judge's format. ``compared`` prompts have a speedup, ``judged`` ones a quality.

    ``ratio`` is realised ÷ theoretical speedup. ``win_rates`` are there for judges that compare. ``families`` is empty
    where prompts have none, and ``marks`` is None without ground truth. ``lengths`` groups prompts by the tokens of the
    baseline's answer, ``thread_counts`` by the threads of this method's.
    """

    kind: str
    line: str | None
    label: str | None
    skipped: int
    cut: int
    fallbacks: int
    compared: int
    judged: int
    invalid: int
    ratio: Estimate | None
    win_rates: WinRates | None
    structure: StructureSummary | None
    marks: Marks | None
    families: tuple[GroupSummary, ...]
    lengths: tuple[GroupSummary, ...]
    thread_counts: tuple[GroupSummary, ...]

    @property
    def title(self) -> str:
        """Its name in figures and tables: line and label if it has them."""
        return " ".join(part for part in (self.line, self.label) if part) if self.label else self.name


@dataclass(frozen=True, slots=True)
class Summary:
    """All metrics of an evaluation.

    ``speed_name`` is the speedup by which methods are compared: ``realised``, or ``theoretical`` where
    nothing was timed. ``pairwise``: quality is the probability that a judge prefers the answer to the baseline's, whose
    own quality is 0.5 by definition. ``front`` are the methods that none dominates, the slowest first; ``areas`` those
    under the front of each line, above the point ``reference`` (speed, quality).
    """

    baseline: str
    prompts: int
    speed_name: SpeedName
    pairwise: bool
    methods: dict[str, MethodSummary]
    front: tuple[str, ...]
    dominations: tuple[Domination, ...]
    lines: tuple[LineComparison, ...]
    areas: tuple[Area, ...]
    reference: tuple[float, float]

    @property
    def candidates(self) -> list[MethodSummary]:
        """All methods but the baseline."""
        return [method for name, method in self.methods.items() if name != self.baseline]

    @property
    def has_quality(self) -> bool:
        """Whether anything was judged."""
        return any(method.quality is not None for method in self.methods.values())

    @property
    def placed(self) -> list[MethodSummary]:
        """Methods with a speed and a quality: those with a place in the Pareto figure."""
        return [
            m for m in self.methods.values() if m.quality is not None and m.speed(self.speed_name) is not None
        ]

    def headline(self) -> dict[str, float]:
        """The figures that a manifest shows: the number of prompts, each method's speedups and quality."""
        figures: dict[str, float] = {"prompts": self.prompts}
        for name, method in self.methods.items():
            for key in ("realised", "theoretical", "quality"):
                estimate: Estimate | None = getattr(method, key)
                if estimate is not None:
                    figures[f"{name}.{key}"] = estimate.value
        return figures


def summarise_evaluation(
    records: Iterable[Record],
    verdicts: Iterable[Record],
    *,
    baseline: str,
    methods: Mapping[str, MethodSection],
) -> Summary:
    """Summarise records and verdicts (formats: ``methods/answers.py``, ``evaluation/judging.py``)."""
    records, verdicts = list(records), list(verdicts)
    methods = {baseline: methods[baseline], **methods}  # the baseline first
    outcomes = outcomes_of(records, verdicts, baseline=baseline, methods=methods)
    pairwise = is_pairwise((record["verdicts"] for record in verdicts), baseline)
    preferred = _win_rates(records, verdicts, baseline, methods) if pairwise else {}
    timed = any(o.realised is not None for name in methods if name != baseline for o in outcomes[name])
    speed_name: SpeedName = "realised" if timed else "theoretical"
    summaries = {
        name: _method(name, section, outcomes[name], preferred.get(name), is_baseline=name == baseline)
        for name, section in methods.items()
    }
    placed = {
        name: outcomes[name]
        for name, method in summaries.items()
        if method.quality is not None and method.speed(speed_name) is not None
    }
    dominated = dominations(placed, speed_name)
    lines = {name: methods[name].line for name in placed}
    reference = PAIRWISE_REFERENCE if pairwise else REFERENCE
    return Summary(
        baseline=baseline,
        prompts=len(records),
        speed_name=speed_name,
        pairwise=pairwise,
        methods=summaries,
        front=on_front(placed, dominated, speed_name),
        dominations=dominated,
        lines=compare_lines(lines, dominated),
        areas=areas_of(placed, lines, speed_name, reference),
        reference=reference,
    )


def _method(
    name: str,
    section: MethodSection,
    outcomes: Sequence[Outcome],
    preferred: WinRates | None,
    *,
    is_baseline: bool,
) -> MethodSummary:
    everything = group_summary(name, outcomes)
    ratios = [o.realised / o.theoretical for o in outcomes if o.realised and o.theoretical]
    return MethodSummary(
        name=name,
        kind=section.kind,
        line=section.line,
        label=section.label,
        prompts=len(outcomes),
        skipped=sum(o.skipped is not None for o in outcomes),
        cut=sum(o.cut for o in outcomes),
        fallbacks=sum(bool(o.answer and o.answer.get("fallback")) for o in outcomes),
        compared=sum(o.theoretical is not None or o.realised is not None for o in outcomes),
        judged=sum(o.quality is not None for o in outcomes),
        invalid=sum(o.invalid for o in outcomes),
        realised=everything.realised,
        theoretical=everything.theoretical,
        ratio=bootstrap(ratios) if ratios else None,
        quality=everything.quality,
        quality_difference=None if is_baseline else everything.quality_difference,
        win_rates=preferred,
        structure=structure_of([o.answer for o in outcomes if o.answer is not None]),
        marks=marks_of(outcomes),
        families=_families(outcomes),
        lengths=_groups(outcomes, lambda o: _length_bin(o.length), _bin_name),
        thread_counts=_groups(outcomes, lambda o: _thread_bin(o.num_threads), _bin_name),
    )


def _win_rates(
    records: Sequence[Record], verdicts: Sequence[Record], baseline: str, methods: Iterable[str]
) -> dict[str, WinRates]:
    by_key = {record["key"]: record for record in verdicts}
    rates = {}
    for name in methods:
        said = preferences_of(records, by_key, method=name, baseline=baseline)
        if name != baseline and any(verdict.preference is not None for verdict in said):
            rates[name] = win_rates(said)
    return rates


def group_summary(name: str, outcomes: Sequence[Outcome]) -> GroupSummary:
    """The estimates over some outcomes of one method."""
    realised = [o.realised for o in outcomes if o.realised is not None]
    theoretical = [o.theoretical for o in outcomes if o.theoretical is not None]
    quality = [o.quality for o in outcomes if o.quality is not None]
    differences = [o.quality_difference for o in outcomes if o.quality_difference is not None]
    return GroupSummary(
        name=name,
        prompts=len(outcomes),
        realised=bootstrap(realised) if realised else None,
        theoretical=bootstrap(theoretical) if theoretical else None,
        quality=bootstrap_mean(quality) if quality else None,
        quality_difference=bootstrap_mean(differences) if differences else None,
    )


def structure_of(answers: Sequence[Mapping[str, Any]]) -> StructureSummary | None:
    """How these answers were decoded; None if there are none."""
    if not answers:
        return None
    # Only of the answers whose steps are known.
    stepped = [answer for answer in answers if answer["critical_path"]]
    threaded = [answer for answer in stepped if answer["threads"]]
    decoded = [(_thread_steps(answer), float(answer["critical_path"])) for answer in threaded]
    waited = [(_main_waits(answer), float(answer["critical_path"])) for answer in threaded]
    kinds = dict.fromkeys(kind for answer in answers for kind in answer["budget"])
    budget = {kind: statistics.fmean(answer["budget"].get(kind, 0) for answer in answers) for kind in kinds}
    first = [answer["ttft_s"] for answer in answers if answer["ttft_s"] is not None]
    total = sum(budget.values())
    return StructureSummary(
        tokens=statistics.fmean(answer["tokens"] for answer in answers),
        budget=budget,
        overhead=(total - budget.get(_TEXT, 0.0)) / total if total else 0.0,
        critical_path=statistics.fmean(a["critical_path"] for a in stepped) if stepped else None,
        threads=statistics.fmean(len(answer["threads"]) for answer in threaded) if threaded else None,
        mean_lanes=ratio_of_sums(decoded) if threaded else None,
        waited=ratio_of_sums(waited) if threaded else None,
        ttft_s=statistics.median(first) if first else None,
    )


def _thread_steps(answer: Mapping[str, Any]) -> float:
    """Steps in which a thread decodes, over all threads."""
    return float(
        sum(
            thread["end"] - thread["start"] - sum(to - since for since, to in thread["waits"])
            for thread in answer["threads"]
        )
    )


def _main_waits(answer: Mapping[str, Any]) -> float:
    waits = [wait for thread in answer["threads"] if thread["parent"] is None for wait in thread["waits"]]
    return float(sum(to - since for since, to in waits))


def _families(outcomes: Sequence[Outcome]) -> tuple[GroupSummary, ...]:
    """Families with independent parts first, then by name."""
    return _groups(
        outcomes,
        lambda o: None if o.family is None else (not o.independent, o.family),
        lambda group: str(group[1]),
    )


def _groups(
    outcomes: Sequence[Outcome], group: Callable[[Outcome], Any], title: Callable[[Any], str]
) -> tuple[GroupSummary, ...]:
    """A summary of each group, in order; outcomes whose group is None are in none."""
    members = grouped(outcomes, group)
    return tuple(group_summary(title(where), members[where]) for where in sorted(members))


def _length_bin(length: int | None) -> tuple[int, int] | None:
    """The bin of a number of tokens, as its least and its greatest number."""
    if length is None:
        return None
    low = high = 0
    for power in itertools.count():
        for step in _LENGTH_STEPS:
            low, high = high, step << power
            if length <= high:
                return (low + 1, high)
    raise AssertionError("powers do not end")


def _thread_bin(threads: int | None) -> tuple[int, int] | None:
    """1, 2, 3–4, 5–8, …"""
    if threads is None:
        return None
    high = 1
    while threads > high:
        high *= 2
    return (high // 2 + 1, high)


def _bin_name(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"
