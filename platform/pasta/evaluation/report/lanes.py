"""Draws threads over time: the fastest, the median and the slowest answer of a method."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from pasta.evaluation.report.findings import in_a_sentence
from pasta.evaluation.report.style import (
    FAINT,
    INK,
    WIDTH,
    Canvas,
    Look,
    darker,
    looks,
    named,
    new_canvas,
    shortened,
)
from pasta.evaluation.results.outcomes import Outcome
from pasta.evaluation.results.summary import Summary
from pasta.statistics import grouped

_ROW = 0.2
_MOST_ROWS = 18
_LABEL = 26  # letters


def draw_lanes(summary: Summary, outcomes: Sequence[Outcome], name: str) -> Canvas | None:
    """Three prompts of a method; None if it has no answer whose threads are known."""
    chosen = choose(outcomes, summary.speed_name)
    if not chosen:
        return None
    method, base = summary.methods[name], named(summary.methods[summary.baseline])
    canvas = new_canvas(1.0)
    top = canvas.titled(
        f"Threads over time: {named(method)}, {in_a_sentence([title for title, _ in chosen])} prompt",
        f"Each bar is a thread that decodes one token a step; hatched: it waits for its chunks. Grey: {base} alone, "
        "one token after another, on the same axis.",
    )
    panels = []
    for title, outcome in chosen:
        rows = _rows(outcome)
        head = canvas.text(0.15, top, _headline(title, outcome, summary), fontsize=9.5, fontweight="bold")
        prompt = canvas.text(0.15, top + head + 0.05, _prompt(outcome), fontsize=8.5, color=FAINT)
        height = _ROW * (len(rows) + 1)
        panels.append((top + head + prompt + 0.12, height, outcome, rows))
        top += head + prompt + 0.12 + height + 0.66
    canvas.resize(top - 0.05)
    labels = [shortened(row["label"], _LABEL) for _, _, _, rows in panels for row in rows]
    left = 0.3 + canvas.text_width([base, *labels], fontsize=8)
    for begin, height, outcome, rows in panels:
        axes = canvas.axes(left, begin, WIDTH - left - 0.3, height)
        _panel(axes, outcome, rows, base, looks(summary)[name])
    return canvas


def choose(outcomes: Sequence[Outcome], speed_name: str) -> list[tuple[str, Outcome]]:
    """The fastest, the median and the slowest of the answers with a speedup and known threads, beside a baseline's
    answer of known length: fewer if there are."""
    known = sorted(
        (o for o in outcomes if o.speed(speed_name) and o.length and o.answer and o.answer["threads"]),
        key=lambda o: (-(o.speed(speed_name) or 0.0), o.key),
    )
    if not known:
        return []
    places = {"fastest": 0, "median": len(known) // 2, "slowest": len(known) - 1}
    titles = grouped(places, lambda title: places[title])
    return [(" and ".join(names), known[place]) for place, names in sorted(titles.items())]


def featured(summary: Summary) -> str | None:
    """The method to show first: the fastest on the front that decodes in threads, else the fastest that does."""
    threaded = [
        m
        for m in summary.candidates
        if m.structure is not None
        and (m.structure.threads or 0) > 1
        and m.speed(summary.speed_name) is not None
    ]
    best = [m for m in threaded if m.name in summary.front] or threaded
    if not best:
        return None
    return max(best, key=lambda m: getattr(m.speed(summary.speed_name), "value", 0.0)).name


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Threads in reading order: a thread, then its chunks. Where there are very many, one row sums up the last ones."""
    assert outcome.answer is not None
    threads = outcome.answer["threads"]
    # Skeleton-of-Thought's first thread writes no text of the answer; without points a single thread writes all of it.
    main, unnamed = (
        ("skeleton", "whole answer") if "skeleton" in outcome.answer["budget"] else ("main thread", "")
    )
    children: dict[int | None, list[int]] = {}
    for number, thread in enumerate(threads):
        children.setdefault(thread["parent"], []).append(number)
    rows: list[dict[str, Any]] = []

    def add(number: int, depth: int) -> None:
        thread = threads[number]
        label = thread["topic"] or (main if thread["parent"] is None else unnamed or f"thread {number}")
        rows.append({"label": "↳ " * max(depth - 1, 0) + label, "depth": depth, **thread})
        for child in children.get(number, ()):
            add(child, depth + 1)

    for root in children.get(None, ()):
        add(root, 0)
    return rows


def _panel(axes: Axes, outcome: Outcome, rows: Sequence[dict[str, Any]], base: str, look: Look) -> None:
    assert outcome.answer is not None
    assert outcome.length is not None
    shown = rows[:_MOST_ROWS]
    axes.barh(0, outcome.length, height=0.72, color="#c9c9c9", lw=0)
    axes.annotate(
        f"{outcome.length} steps",
        (outcome.length, 0),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=8,
    )
    for place, row in enumerate(shown, start=1):
        _bar(axes, place, row, darker(look.color) if row["depth"] == 0 else look.color)
    end = outcome.answer["critical_path"] or max(row["end"] for row in rows)
    axes.axvline(end, color=INK, lw=0.9, ls=(0, (3, 2)), zorder=4)
    limit = max(outcome.length, end) * 1.01
    axes.annotate(
        f"done: {end} steps",
        (end, len(shown) + 0.5),
        xytext=(4 if end < 0.8 * limit else -4, 2),
        textcoords="offset points",
        ha="left" if end < 0.8 * limit else "right",
        va="bottom",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
        zorder=5,
    )
    labels = [base, *(shortened(row["label"], _LABEL) for row in shown)]
    if len(rows) > len(shown):
        labels[-1] += f"  (+{len(rows) - len(shown)} more)"
    axes.set_yticks(range(len(labels)), labels, fontsize=8, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) + 0.5, -0.5)
    axes.set_xlim(0, limit)
    axes.set_xlabel("step (one token of every live thread)", labelpad=1)
    axes.grid(True, axis="x")


def _bar(axes: Axes, place: int, row: Mapping[str, Any], color: str) -> None:
    """A thread's bar, in pieces around its waits."""
    at = row["start"]
    for since, to in row["waits"]:
        axes.barh(place, since - at, left=at, height=0.72, color=color, lw=0)
        axes.barh(
            place,
            to - since,
            left=since,
            height=0.72,
            facecolor="white",
            edgecolor=color,
            hatch="////",
            lw=0.6,
        )
        at = to
    axes.barh(place, row["end"] - at, left=at, height=0.72, color=color, lw=0)


def _headline(title: str, outcome: Outcome, summary: Summary) -> str:
    parts = []
    if outcome.realised is not None:
        parts.append(f"{outcome.realised:.2f}× realised")
    if outcome.theoretical is not None:
        parts.append(f"{outcome.theoretical:.2f}× theoretical")
    count = outcome.num_threads or 0
    parts.append(f"{count} thread{'s' if count != 1 else ''}")
    if outcome.quality is not None:
        parts.append(f"quality {outcome.quality:.2f}")
    return f"{title.capitalize()}: {', '.join(parts)}"


def _prompt(outcome: Outcome) -> str:
    return textwrap.shorten(f"“{outcome.messages[-1]['content']}”", 190, placeholder=" …”")
