"""Summarises an annotation run: counts, threads, theoretical speedups, reasons for rejection, cost."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta.data.annotate.annotator import TeacherUsage
from pasta.data.annotate.finished import ShardResult
from pasta.data.annotate.teacher import TeacherSection
from pasta.data.annotate.truth import TruthTally, marks_line
from pasta.errors import UserError
from pasta.files import annotated_files
from pasta.rows import read_rows
from pasta.statistics import geometric_mean, histogram_lines, percentile

SUMMARY = "summary.json"
_EDGES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, math.inf)
_NAMED_PLACES = 20


def summarise_annotations(
    directory: Path, results: Sequence[ShardResult], teacher: TeacherSection | None = None
) -> dict[str, Any]:
    """The summary of finished shards in ``directory``, annotated by ``teacher``, if by one. Raises UserError if not one
    record could be kept.

    Answers to atlas tasks are compared with the ground truth (``marks``). Speedups are theoretical: tokens of the
    answer by steps of its critical path; means of them are geometric.
    """
    truth = TruthTally()
    figures = []
    for file in annotated_files(directory):
        for _, row in read_rows(file):
            figures.append(row["figures"])
            truth.add(row["messages"], row["annotated"], row["answer"])
    rejected = sum((Counter(result.rejected) for result in results), Counter[str]())
    if not figures:
        reasons = ", ".join(f"{reason} {count}" for reason, count in rejected.most_common())
        raise UserError(
            f"none of {sum(r.num_records for r in results)} records could be kept: {reasons}; "
            f"{directory}/rejects-*.jsonl holds why; --restart annotates them again"
        )
    annotated = [each for each in figures if each["threads"] > 1]
    usage = sum((result.usage for result in results), TeacherUsage())
    num_records = sum(result.num_records for result in results)
    summary: dict[str, Any] = {
        "records": num_records,
        "kept": len(figures),
        "annotated": len(annotated),
        "share_annotated": len(annotated) / len(figures),
        "rejected": sum(rejected.values()),
        "share_rejected": sum(rejected.values()) / num_records,
        "rejected_by_reason": dict(rejected.most_common()),
        "repairs": dict(sum((Counter(r.repairs) for r in results), Counter[str]()).most_common()),
        "broken_records": list(itertools.islice((b for r in results for b in r.broken), _NAMED_PLACES)),
        "tokens_an_answer": _spread([each["tokens"] for each in figures]),
        "threads_an_answer": _spread([each["threads"] for each in figures]),
        "threads_an_annotated_answer": _spread([each["threads"] for each in annotated]),
        "tokens_a_chunk": _spread([n for each in annotated for n in each["chunk_tokens"]]),
        "speedup": _geometric_mean([each["speedup"] for each in figures]),
        "speedup_of_annotated": _geometric_mean([each["speedup"] for each in annotated]),
        "speedup_distribution": _histogram([each["speedup"] for each in figures]),
        "worker_seconds": round(sum(result.seconds for result in results), 2),
    }
    judged = sum((result.judged for result in results), TeacherUsage())
    judge = teacher.independence_judge if teacher else None
    for name, used, asked in (("usage", usage, teacher), ("judge_usage", judged, judge)):
        if used.requests:
            summary[name] = asdict(used)
            if asked is not None:
                cost = asked.endpoint.cost(used.prompt_tokens, used.completion_tokens)
                summary[name]["cost"] = round(cost, 6)
    refused = sum((Counter(result.refused) for result in results), Counter[str]())
    if refused:
        summary["proposals_refused_by_reason"] = dict(refused.most_common())
    if truth.num_answers:
        summary["marks"] = truth.marks()
    return summary


def summary_text(summary: dict[str, Any]) -> str:
    """The summary in lines for people."""
    lines = [
        f"records       {summary['records']:,}: {summary['kept']:,} kept, {summary['rejected']:,} rejected",
        f"annotated     {summary['annotated']:,} ({summary['share_annotated']:.1%} of the kept)",
    ]
    for reason, count in summary["rejected_by_reason"].items():
        lines.append(f"rejected      {count:,} × {reason}")
    lines += [f"broken        {place}" for place in summary["broken_records"][:5]]
    for repair, count in summary["repairs"].items():
        lines.append(f"repaired      {count:,} × {repair}")
    for label, key in (
        ("tokens", "tokens_an_answer"),
        ("threads", "threads_an_answer"),
        ("chunks", "tokens_a_chunk"),
    ):
        if summary[key]:
            lines.append(f"{label:<14}{_spread_text(summary[key])} ({key.replace('_', ' ')})")
    for reason, count in summary.get("proposals_refused_by_reason", {}).items():
        lines.append(f"proposals     {count:,} × {reason}, refused")
    for label, key in (("teacher", "usage"), ("judge", "judge_usage")):
        if key in summary:
            usage = summary[key]
            cost = f", cost {usage['cost']:.4f}" if "cost" in usage else ""
            lines.append(
                f"{label:<14}{usage['requests']:,} requests, {usage['prompt_tokens']:,} tokens read, "
                f"{usage['completion_tokens']:,} written{cost}"
            )
    if "marks" in summary:
        lines.append(f"truth         {marks_line(summary['marks'])}")
    mean = f"geometric mean {summary['speedup']:.2f}"
    if summary["annotated"]:
        mean += f", of the annotated {summary['speedup_of_annotated']:.2f}"
    lines.append(f"speedup       theoretical, {mean}")
    return "\n".join(lines + histogram_lines(summary["speedup_distribution"], 12, 8))


def logged(summary: dict[str, Any]) -> dict[str, float]:
    """The summary's numbers under the names they are tracked by."""
    flat: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, int | float):
            flat[f"annotate/{key}"] = value
        elif isinstance(value, dict):
            flat |= {
                f"annotate/{key}/{name}": number
                for name, number in value.items()
                if isinstance(number, int | float)
            }
    return flat


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    median, ninetieth = (round(percentile(values, share), 2) for share in (0.5, 0.9))
    return {"mean": round(fmean(values), 2), "median": median, "p90": ninetieth, "max": max(values)}


def _spread_text(spread: dict[str, float]) -> str:
    median, ninetieth = spread["median"], spread["p90"]
    return f"mean {spread['mean']:.1f}, median {median:g}, 90% below {ninetieth:g}, at most {spread['max']}"


def _geometric_mean(values: Sequence[float]) -> float | None:
    return round(geometric_mean(values), 4) if values else None


def _histogram(values: Iterable[float]) -> dict[str, int]:
    """Counts by range; what is below 1 has a range of its own."""
    counts = Counter(next((i for i, edge in enumerate(_EDGES) if value < edge)) for value in values)
    names = ["below 1", *(f"{low:g} to {high:g}" for low, high in itertools.pairwise(_EDGES))]
    return {name: counts[index] for index, name in enumerate(names)}


def rates(results: Collection[ShardResult], records_per_second: float) -> dict[str, float]:
    """Counts and shares over all finished shards, and the rate of this run."""
    records = sum(result.num_records for result in results)
    annotated = sum(result.num_annotated for result in results)
    kept = annotated + sum(result.num_plain for result in results)
    return {
        "records": records,
        "records_per_second": records_per_second,
        "share_annotated": annotated / max(kept, 1),
        "share_rejected": 1 - kept / max(records, 1),
    }


def rates_line(figures: Mapping[str, float]) -> str:
    """``rates`` in a few words."""
    return (
        f"{figures['records']:,} records, {figures['records_per_second']:.1f} a second, "
        f"{figures['share_annotated']:.1%} annotated, {figures['share_rejected']:.1%} rejected"
    )
