"""The report as Markdown."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pasta.evaluation.report.experiment import areas_section, marks_section
from pasta.evaluation.report.findings import findings, share, signed, times, with_sign
from pasta.evaluation.results.failures import FamilyFailure, wrong_by_reason
from pasta.evaluation.results.outcomes import Outcome
from pasta.evaluation.results.summary import MethodSummary, Summary
from pasta.markdown import markdown

_ANSWER_LINES, _SAID, _LONGEST = 6, 4, 220
#: What each figure shows, by file.
CAPTIONS = {
    "pareto.png": "Quality against speed: the main result",
    "speedups.png": "How speedups spread over prompts",
    "speedup_by_length_and_threads.png": "Where the speedup comes from",
    "lanes.png": "Threads over time",
    "token_budget.png": "What tokens are spent on",
    "families.png": "Speed and quality by task family",
}


def report_text(
    summary: Summary,
    outcomes: Mapping[str, Sequence[Outcome]],
    failures: Mapping[str, Sequence[FamilyFailure]],
    pictures: Sequence[str],
    *,
    title: str,
    config: Mapping[str, Any],
    machines: Sequence[Mapping[str, Any]],
) -> str:
    """The whole report. ``pictures`` are the figures that were drawn, relative to it."""
    figures = [f"![{CAPTIONS[name]}]({name})" for name in pictures if name in CAPTIONS]
    more = [name for name in pictures if name not in CAPTIONS]
    if more:
        links = ", ".join(f"[{name.rpartition('/')[2].removesuffix('.png')}]({name})" for name in more)
        figures.append(f"Threads over time of each method: {links}.")
    parts = [
        f"# {title}",
        _question(summary),
        "## What came out",
        "\n".join(f"- {finding}" for finding in findings(summary)),
        _results(summary),
        _notes(summary, config),
        *areas_section(summary),
        "## Figures" if figures else "",
        "\n\n".join(figures),
        "## How answers are decoded",
        _structure(summary),
        *marks_section(summary),
        *_families(summary),
        *_failures(summary, outcomes, failures),
        "## How it was measured",
        _measured(summary, config, machines),
        "## What is not in it",
        _left_out(summary, outcomes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def title_and_name(method: MethodSummary) -> str:
    """Its title, and the name that the configuration and the records have for it."""
    return method.title if method.title == method.name else f"{method.title} (`{method.name}`)"


def _question(summary: Summary) -> str:
    base = summary.methods[summary.baseline]
    count = len(summary.candidates)
    quality = ", and what does that do to the quality of the answers" if summary.has_quality else ""
    return (
        f"How much faster than **{base.title}**, which writes one token after another, "
        f"{'is the method' if count == 1 else f'are {count} methods'} on {summary.prompts} "
        f"prompt{'s' if summary.prompts != 1 else ''}{quality}?"
    )


def _results(summary: Summary) -> str:
    compares = any(m.win_rates for m in summary.candidates)
    header = ["method", "prompts", "realised speedup", "theoretical speedup", "realised ÷ theoretical"]
    header += ["quality", "difference in quality"]
    header += ["win rate, %", "win rate at equal length¹, %"] if compares else []
    header += ["first token"]
    rows = []
    for method in summary.methods.values():
        row = [
            title_and_name(method) + (", the baseline" if method.name == summary.baseline else ""),
            str(method.prompts),
            times(method.realised),
            times(method.theoretical),
            times(method.ratio),
            share(method.quality),
            signed(method.quality_difference),
        ]
        if compares:
            rates = method.win_rates
            row += (
                [_percent(rate) for rate in (rates.raw, rates.length_controlled_without_difficulty)]
                if rates
                else ["–", "–"]
            )
        first = method.structure.ttft_s if method.structure else None
        rows.append([*row, "–" if first is None else f"{1e3 * first:.1f} ms"])
    return markdown(header, rows)


def _percent(rate: Any) -> str:
    """A win rate with its interval, or why one of them is missing."""
    interval = rate.reason if rate.low is None else f"{rate.low:.1f}–{rate.high:.1f}"
    return f"{'–' if rate.value is None else f'{rate.value:.1f}'} ({interval})"


def _notes(summary: Summary, config: Mapping[str, Any]) -> str:
    judge = config.get("judge") or {}
    both_orders = ", both orders averaged" if judge.get("kind") == "teacher" else ""
    quality = (
        f"the probability that the judge prefers the answer to the baseline’s{both_orders}"
        if summary.pairwise
        else "the mean over answers of the judge’s grade, from 0 to 1 (the grader’s: an answer’s share of right "
        "statements)"
    )
    if any(m.invalid for m in summary.methods.values()):
        unjudged = "None of the judge’s verdicts is valid"
    else:
        unjudged = "The judge has given no verdict yet" if judge else "No judge was configured"
    notes = [
        "In brackets: 95% bootstrap intervals over prompts; differences are paired. Means of speedups are geometric.",
        "Realised speedup is a ratio of wall clock, batch 1, greedy; theoretical speedup is tokens of the baseline’s "
        "answer ÷ steps of the method’s critical path, tags counted. Both are over the prompts that both methods "
        "ended by themselves.",
        f"Quality is {quality}, answers that a limit cut included."
        if summary.has_quality
        else f"{unjudged}: nothing is said of quality.",
        "First token: median of the time to it.",
    ]
    if any(m.win_rates for m in summary.candidates):
        notes.append(
            "¹ The length-controlled win rate without the difficulty term: another quantity than AlpacaEval’s."
        )
    return " ".join(notes)


def _structure(summary: Summary) -> str:
    header = [
        "method",
        "tokens an answer",
        "overhead",
        "critical path",
        "threads",
        "lanes",
        "waiting at syncs",
    ]
    rows = []
    for method in summary.methods.values():
        s = method.structure
        if s is None:
            rows.append([title_and_name(method), *["–"] * (len(header) - 1)])
            continue
        rows.append(
            [
                title_and_name(method),
                f"{s.tokens:.0f}",
                f"{s.overhead:.1%}",
                _or_dash(s.critical_path, ".0f"),
                _or_dash(s.threads, ".1f"),
                _or_dash(s.mean_lanes, ".2f"),
                _or_dash(s.waited, ".1%"),
            ]
        )
    return (
        markdown(header, rows)
        + "\n\nMeans over all answers. Overhead: tokens that are no text of the answer (tags, skeletons). Critical "
        "path: steps. Lanes: threads that decode at once, over all steps. Waiting: steps in which the main thread "
        "waits for its chunks."
    )


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _families(summary: Summary) -> list[str]:
    methods = [m for m in summary.methods.values() if m.families]
    counts = {group.name: group.prompts for m in methods for group in m.families}
    if not counts:
        return []
    out = ["## By task family"]
    shown: list[tuple[str, str, list[MethodSummary]]] = [
        (f"{summary.speed_name.capitalize()} speedup", summary.speed_name, summary.candidates)
    ]
    if summary.has_quality:
        shown.append(("Quality", "quality", methods))
    for title, field, columns in shown:
        groups = {m.name: {g.name: getattr(g, field) for g in m.families} for m in columns}
        form = ".2f" if field == summary.speed_name else ".3f"
        rows = []
        for family, count in counts.items():
            found = [groups[m.name].get(family) for m in columns]
            rows.append([family, count, *(_or_dash(e.value if e else None, form) for e in found)])
        out += [f"{title}:", markdown(["family", "prompts", *(m.title for m in columns)], rows)]
    out.append(
        "Intervals, and the same by answer length and by number of threads, are in [figures.json](figures.json)."
    )
    return out


def _failures(
    summary: Summary,
    outcomes: Mapping[str, Sequence[Outcome]],
    failures: Mapping[str, Sequence[FamilyFailure]],
) -> list[str]:
    out = ["## Where each method fails", *_kinds(summary, outcomes)]
    for name, method in summary.methods.items():
        out.append(f"### {title_and_name(method)}")
        found = failures.get(name, ())
        if not found:
            out.append(_no_failure(summary, method))
            continue
        out.append(_failure_table(found))
        out += [_example(failure) for failure in found]
    return out


def _kinds(summary: Summary, outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """How answers fail, over all families: only where statements are graded."""
    reasons = {name: wrong_by_reason(members) for name, members in outcomes.items()}
    if not any(count for counts in reasons.values() for count in counts.values()):
        return []
    rows = []
    for name, counts in reasons.items():
        answers = sum(o.answer is not None for o in outcomes[name])
        means = (f"{count / answers:.2f}" if answers else "–" for count in counts.values())
        rows.append([title_and_name(summary.methods[name]), summary.methods[name].cut, *means])
    header = ["method", "cut answers", *next(iter(reasons.values()))]
    return [
        "Wrong statements an answer, by why they are wrong:",
        markdown(header, rows),
        "Then, for each method, the families in which it loses most quality against the baseline (for the baseline: "
        "those in which it is worst), each with its worst answer.",
    ]


def _no_failure(summary: Summary, method: MethodSummary) -> str:
    if not method.judged:
        if method.invalid:
            return "No verdict on its answers is valid, and none of them was cut."
        return "No answer was judged and none was cut."
    if method.name == summary.baseline:
        return "The others are compared with it." if summary.pairwise else "All of its answers are right."
    return "No family in which it does worse than the baseline."


def _failure_table(found: Sequence[FamilyFailure]) -> str:
    rows = [
        [
            failure.family,
            failure.prompts,
            _or_dash(failure.quality, ".3f"),
            "–" if failure.quality_difference is None else with_sign(failure.quality_difference),
            failure.cut,
            ", ".join(f"{count} {reason}" for reason, count in failure.reasons.items()) or "–",
        ]
        for failure in found
    ]
    return markdown(["family", "prompts", "quality", "against the baseline", "cut", "wrong statements"], rows)


def _example(failure: FamilyFailure) -> str:
    example = failure.example
    lines = example.answer.split("\n")
    shown = [_clipped(line) for line in lines[:_ANSWER_LINES]]
    if len(lines) > len(shown):
        shown.append(f"… ({len(lines) - len(shown)} more lines)")
    fence = "```"
    while any(fence in line for line in shown):
        fence += "`"
    said = [f"- {_plain(line)}" for line in example.said[: _SAID + 1]]
    if len(example.said) > len(said):
        said.append(f"- … and {len(example.said) - len(said)} more")
    heading = f"{failure.family}: an answer of quality {_or_dash(example.quality, '.2f')}"
    if example.finish_reason != "stop":
        heading += ", cut at a limit"
    parts = [
        f"<details><summary>{heading}</summary>",
        f"Prompt (`{example.key}`): {_plain(example.prompt)}",
        "\n".join([fence, *shown, fence]),
    ]
    if said:
        parts += ["The judge:", "\n".join(said)]
    return "\n\n".join([*parts, "</details>"])


def _clipped(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _plain(text: str) -> str:
    """One line in which nothing is markup."""
    text = _clipped(" ".join(text.split()))
    for mark in ("\\", "`", "*", "_", "<", "[", "|"):
        text = text.replace(mark, f"\\{mark}")
    return text


def _measured(summary: Summary, config: Mapping[str, Any], machines: Sequence[Mapping[str, Any]]) -> str:
    repeats = config.get("repeats")
    lines = [
        "Nothing was timed."
        if repeats == 0
        else "All methods answer a prompt in one process before the next one is taken, so that the machine’s drift "
        "cancels: each once to warm up, then timed" + (f" {_often(repeats)}." if repeats else ".")
    ]
    lines += ["- " + ", ".join(f"{key} {_shown(value)}" for key, value in m.items()) for m in machines]
    if config:
        body = json.dumps(config, indent=2, ensure_ascii=False, default=str)
        lines.append(f"<details><summary>Configuration</summary>\n\n```json\n{body}\n```\n\n</details>")
    return "\n\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # by method: one value if all have the same
        distinct = [*dict.fromkeys(value.values())]
        value = distinct if len(distinct) == 1 else [*map(" ".join, value.items())]
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _left_out(summary: Summary, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    header = [
        "method",
        "prompts",
        "skipped",
        "cut at a limit",
        "fallbacks",
        "invalid verdicts",
        "in the speedup",
        "in the quality",
    ]
    rows = [
        [title_and_name(m), m.prompts, m.skipped, m.cut, m.fallbacks, m.invalid, m.compared, m.judged]
        for m in summary.methods.values()
    ]
    out = [
        markdown(header, rows),
        "A prompt that a method or the baseline skipped or did not end is in no speedup; an answer without a valid "
        "verdict is in no quality. A fallback was decoded sequentially instead and counts as it came out.",
    ]
    reasons = []
    for name, members in outcomes.items():
        for title, counts in (
            ("skipped", Counter(o.skipped for o in members if o.skipped is not None)),
            (
                "fell back",
                Counter(str(o.answer["fallback"]) for o in members if o.answer and o.answer.get("fallback")),
            ),
            ("invalid", Counter(str(o.verdict.get("invalid")) for o in members if o.invalid)),
        ):
            for reason, count in counts.most_common(3):
                reasons.append(f"- {summary.methods[name].title}, {title} {count}×: {_plain(reason)}")
    return "\n\n".join([*out, "\n".join(reasons)] if reasons else out)
