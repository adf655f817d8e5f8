"""Draws the speedups of single prompts, and by length of the answer and number of threads."""

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pasta.evaluation.report.style import (
    FAINT,
    INK,
    WIDTH,
    Canvas,
    Look,
    batches,
    errors,
    looks,
    method_rows,
    named,
    new_canvas,
)
from pasta.evaluation.results.outcomes import Outcome
from pasta.evaluation.results.summary import GroupSummary, MethodSummary, Summary

_ROW = 0.42
_PANEL, _BELOW = 2.5, 0.82  # heights of a panel, and of what stands below it
_LONG_NAME = 5  # letters of a group's name: a longer one takes two lines
_TICKS = (0.1, 0.2, 0.33, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_FINE_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
_FEW_TICKS = 4
_LEAST_RANGE = (0.85, 1.3)  # less is not drawn larger


def draw_distribution(summary: Summary, outcomes: Mapping[str, Sequence[Outcome]]) -> Canvas | None:
    """Each candidate's speedups, a dot a prompt; None if no candidate has any."""
    methods = [m for m in summary.candidates if m.speed(summary.speed_name) is not None]
    if not methods:
        return None
    values = {m.name: speeds(outcomes[m.name], summary.speed_name) for m in methods}
    canvas = new_canvas(1.0)
    top = canvas.titled(
        f"{summary.speed_name.capitalize()} speedup of every prompt",
        "A dot a prompt; dark bar: middle half of the prompts; white diamond: geometric mean, written out at the right "
        "with its 95% interval.",
    )
    axes = method_rows(canvas, top, _ROW, methods, [_note(m, summary) for m in methods])
    rng = random.Random(0)
    look = looks(summary)
    for row, method in enumerate(methods):
        color, dots = look[method.name].color, values[method.name]
        axes.scatter(
            dots,
            [row + rng.uniform(-0.27, 0.27) for _ in dots],
            s=9 if len(dots) > 60 else 16,
            color=color,
            alpha=0.45 if len(dots) > 60 else 0.75,
            lw=0,
            zorder=2,
        )
        if len(dots) > 3:
            low, _, high = quantiles(dots, n=4, method="inclusive")
            axes.plot([low, high], [row, row], color=INK, lw=3, solid_capstyle="butt", zorder=3)
        mean = method.speed(summary.speed_name)
        assert mean is not None
        axes.plot(mean.value, row, "D", color="white", mec=INK, mew=1, ms=5.5, zorder=4)
    ratio_axis(axes.xaxis, axes.set_xscale, axes.set_xlim, [v for dots in values.values() for v in dots])
    axes.axvline(1, color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    axes.grid(True, axis="x")
    axes.set_xlabel(f"{summary.speed_name} speedup over {_base(summary)} (×, each doubling equally wide)")
    return canvas


def draw_groups(summary: Summary) -> Canvas | None:
    """Speedup by the length of the baseline's answer (left) and by the answer's own threads (right)."""
    groups = [
        (name, [m for m in members if m.speed(summary.speed_name) is not None])
        for name, members in batches(summary)
    ]
    groups = [(name, members) for name, members in groups if members]
    if not groups:
        return None
    canvas = new_canvas(1.0)
    top = canvas.titled(
        f"{summary.speed_name.capitalize()} speedup against answer length and number of threads",
        "Geometric means with 95% intervals; n is the number of prompts, where it is the same for all methods drawn.",
    )
    legend = 0.35 + canvas.text_width(named(m) for _, members in groups for m in members)
    width = (WIDTH - 0.65 - 0.5 - legend - 0.3) / 2
    canvas.resize(top + len(groups) * (_PANEL + _BELOW) + 0.12)
    look = looks(summary)
    every = [
        v
        for _, members in groups
        for m in members
        for group in (*m.lengths, *m.thread_counts)
        if (e := group.speed(summary.speed_name))
        for v in (e.low, e.high)
    ]
    for number, (_, members) in enumerate(groups):
        at = top + number * (_PANEL + _BELOW)
        left = canvas.axes(0.65, at, width, _PANEL)
        right = canvas.axes(0.65 + width + 0.5, at, width, _PANEL, sharey=left)
        _panel(left, summary, members, look, lambda m: m.lengths)
        _panel(right, summary, members, look, lambda m: m.thread_counts)
        ratio_axis(left.yaxis, left.set_yscale, left.set_ylim, [*every, 1.0])
        right.tick_params(labelleft=False)
        left.set_ylabel(f"{summary.speed_name} speedup (×)")
        left.set_xlabel(f"tokens of {_base(summary)}’s answer")
        right.set_xlabel("threads of the method’s answer")
        handles, labels = left.get_legend_handles_labels()
        right.legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0.3)
    return canvas


def speeds(outcomes: Sequence[Outcome], name: str) -> list[float]:
    """The speedups of this name that were measured."""
    return [speed for o in outcomes if (speed := o.speed(name)) is not None]


def ratio_axis(
    axis: object, set_scale: Callable[..., object], set_limits: Callable[..., object], values: Sequence[float]
) -> None:
    """A logarithmic axis with plain numbers at round ratios, wide enough for the values and for 1."""
    low, high = min(*values, _LEAST_RANGE[0]), max(*values, _LEAST_RANGE[1])
    pad = max((high / low) ** 0.05, 1.04)
    set_scale("log")
    set_limits(low / pad, high * pad)
    wanted, fine = (
        [tick for tick in ticks if low / pad <= tick <= high * pad] for ticks in (_TICKS, _FINE_TICKS)
    )
    wanted = fine if len(wanted) < _FEW_TICKS else wanted
    axis.set_major_locator(FixedLocator(wanted))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # type: ignore[attr-defined]


def _panel(
    axes: Axes,
    summary: Summary,
    members: Sequence[MethodSummary],
    look: Mapping[str, Look],
    groups_of: Callable[[MethodSummary], Sequence[GroupSummary]],
) -> None:
    names: dict[str, int] = {}
    for method in members:
        names |= {g.name: _least(g.name) for g in groups_of(method) if g.speed(summary.speed_name)}
    order = sorted(names, key=lambda name: names[name])
    for number, method in enumerate(members):
        points = [(order.index(g.name), e) for g in groups_of(method) if (e := g.speed(summary.speed_name))]
        shift = (number - (len(members) - 1) / 2) * min(0.06, 0.4 / len(members))
        axes.errorbar(
            [x + shift for x, _ in points],
            [e.value for _, e in points],
            yerr=np.array([errors(e) for _, e in points]).reshape(-1, 2).T,
            color=look[method.name].color,
            marker=look[method.name].marker,
            ms=5,
            lw=1.3,
            elinewidth=0.9,
            mec="white",
            mew=0.6,
            label=named(method),
        )
    axes.axhline(1, color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    counts: dict[str, set[int]] = {name: set() for name in order}
    for group in (group for method in members for group in groups_of(method)):
        if (estimate := group.speed(summary.speed_name)) is not None:
            counts[group.name].add(estimate.count)
    axes.set_xticks(range(len(order)), [_with_count(name, counts[name]) for name in order])
    axes.set_xlim(-0.5, max(len(order), 1) - 0.5)
    axes.grid(True, axis="y")


def _with_count(name: str, counts: set[int]) -> str:
    """A group's name, and its number of prompts where it is one for all methods."""
    shown = name.replace("–", "–\n") if len(name) > _LONG_NAME else name
    return f"{shown}\nn={min(counts)}" if len(counts) == 1 else f"{shown}\n "


def _least(name: str) -> int:
    return int(name.partition("–")[0])


def _note(method: MethodSummary, summary: Summary) -> str:
    mean = method.speed(summary.speed_name)
    assert mean is not None
    interval = f" ({mean.low:.2f}–{mean.high:.2f})" if mean.count > 1 else ""
    return f"{mean.value:.2f}×{interval}, n={mean.count}"


def _base(summary: Summary) -> str:
    return named(summary.methods[summary.baseline])
