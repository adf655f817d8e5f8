"""Draws speed and quality by task family: a row for each family, a column for each method."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from pasta.evaluation.report.style import INK, WIDTH, Canvas, named, new_canvas
from pasta.evaluation.results.summary import GroupSummary, MethodSummary, SpeedName, Summary

#: What a cell shows, and its colour from -1 (worse) to 1 (better).
Cell = Callable[[GroupSummary], tuple[str, float] | None]

_ROW = 0.27
#: From worse (orange) over equal (white) to better (blue): told apart with any colour vision.
_BETTER = LinearSegmentedColormap.from_list("better", ["#D55E00", "#ffffff", "#0072B2"])
_MOST_SPEED = 4.0  # where the colour is full, and 1 / 4 on the other side
_MOST_QUALITY = 0.5
_MOST_BESIDE = 5  # methods
_NOTHING = (0.95, 0.95, 0.95, 1.0)


def draw_families(summary: Summary) -> Canvas | None:
    """Two tables in colour: speedup, and quality with its difference to the baseline's. None without families."""
    methods = [m for m in summary.candidates if m.families]
    counts = {g.name: g.prompts for m in methods for g in m.families}
    if not any(g.quality or g.speed(summary.speed_name) for m in methods for g in m.families):
        return None
    names = list(counts)
    tables: list[tuple[str, Cell]] = [
        (f"{summary.speed_name.capitalize()} speedup (×)", lambda g: _speed_cell(g, summary.speed_name))
    ]
    if any(g.quality for m in methods for g in m.families):
        tables.append(("Quality", _quality_cell))
    canvas = new_canvas(1.0)
    top = canvas.titled(
        f"{'Speed and quality' if len(tables) > 1 else 'Speed'} by task family",
        f"Colour: against {named(summary.methods[summary.baseline])}, blue is better and orange worse (full colour: "
        f"{_MOST_SPEED:g} times as fast, {_MOST_QUALITY:g} of quality). n: prompts. –: none to compare.",
    )
    labels = [f"{name}  n={count}" for name, count in counts.items()]
    heads = [named(m) for m in methods]
    left = 0.3 + canvas.text_width(labels, fontsize=8)
    head_width = canvas.text_width(heads, fontsize=8)
    # Few methods: side by side.
    beside = len(tables) > 1 and len(methods) <= _MOST_BESIDE
    width = (WIDTH - left - 0.25) / (2 if beside else 1) - (0.2 if beside else 0.0)
    slanted = head_width > width / len(methods) - 0.06
    head = 0.15 + 0.72 * head_width if slanted else 0.25
    if slanted:
        width -= 0.6 * head
    height = _ROW * len(names)
    canvas.resize(top + (1 if beside else len(tables)) * (head + height + 0.34))
    for number, (title, cell) in enumerate(tables):
        at = top if beside else top + number * (head + height + 0.34)
        begin = left + number * (width + 0.2 + (0.6 * head if slanted else 0.0)) if beside else left
        canvas.text(begin if beside else 0.15, at, title, fontsize=9.5, fontweight="bold")
        axes = canvas.axes(begin, at + 0.12 + head, width, height)
        _table(axes, labels if begin == left else None, names, methods, cell, slanted=slanted)
    return canvas


def _table(
    axes: Axes,
    labels: Sequence[str] | None,
    names: Sequence[str],
    methods: Sequence[MethodSummary],
    cell: Cell,
    *,
    slanted: bool,
) -> None:
    axes.set_xlim(0, len(methods))
    axes.set_ylim(len(names), 0)
    small = 8 if len(methods) <= 10 else 7
    for column, method in enumerate(methods):
        groups = {group.name: group for group in method.families}
        for row, name in enumerate(names):
            shown = cell(groups[name]) if name in groups else None
            text, color = ("–", _NOTHING) if shown is None else (shown[0], _color(shown[1]))
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white", lw=1))
            dark = shown is not None and abs(shown[1]) > 0.75
            axes.text(
                column + 0.5,
                row + 0.52,
                text,
                ha="center",
                va="center",
                fontsize=small,
                color="white" if dark else INK,
            )
    axes.set_yticks(
        [row + 0.5 for row in range(len(names))], labels or [""] * len(names), fontsize=8, color=INK
    )
    axes.xaxis.tick_top()
    axes.set_xticks([c + 0.5 for c in range(len(methods))])
    if slanted:
        axes.set_xticklabels(
            [named(m) for m in methods], fontsize=8, color=INK, rotation=45, ha="left", rotation_mode="anchor"
        )
    else:
        axes.set_xticklabels([named(m) for m in methods], fontsize=8, color=INK)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _color(value: float) -> tuple[float, float, float, float]:
    """The colour of a value from -1 to 1."""
    return _BETTER(0.5 + 0.5 * max(-1.0, min(1.0, value)))


def _speed_cell(group: GroupSummary, name: SpeedName) -> tuple[str, float] | None:
    speed = group.speed(name)
    if speed is None:
        return None
    return f"{speed.value:.2f}", math.log(speed.value) / math.log(_MOST_SPEED)


def _quality_cell(group: GroupSummary) -> tuple[str, float] | None:
    if group.quality is None:
        return None
    difference = group.quality_difference.value if group.quality_difference else 0.0
    return f"{group.quality.value:.2f}", difference / _MOST_QUALITY
