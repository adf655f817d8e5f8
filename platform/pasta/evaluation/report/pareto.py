"""Draws the Pareto figure: quality against speed, a point for each method."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from pasta.evaluation.report.style import (
    FAINT,
    SHADE,
    WIDTH,
    Canvas,
    errors,
    line_color,
    looks,
    named,
    new_canvas,
    readable,
    shortened,
)
from pasta.evaluation.results.summary import MethodSummary, Summary
from pasta.statistics import Estimate

#: Geometric-mean speedups that the paper reports (arXiv 2502.11517: Gemma 7B, AlpacaEval, one H100).
PAPER = (1.21, 1.93)
_PAPER_LABEL = "paper’s 1.21–1.93× (Gemma 7B,\nAlpacaEval, H100): reference only"
_LABEL = 24  # letters
_LEAST_SPAN = 0.04  # of quality: less is not drawn larger
# Where a label may stand beside its point: directions, then distances in points.
_PLACES = ((1, 1), (1, 0), (1, -1), (-1, 1), (-1, 0), (-1, -1), (0, 1), (0, -1))
_DISTANCES = (5, 13, 24, 38, 54)


def draw_pareto(summary: Summary) -> Canvas | None:
    """Every method that has both a speed and a quality; None if fewer than two have."""
    methods = summary.placed
    if len(methods) < 2:
        return None
    canvas = new_canvas(5.8)
    counts = sorted({estimate.count for m in methods for estimate in _estimates(summary, m)})
    prompts = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    top = canvas.titled(
        f"Quality against {summary.speed_name} speedup: up and to the right is better",
        f"{prompts} prompt{'s' if prompts != '1' else ''}, batch 1, greedy. Bars: 95% intervals. "
        "Grey: dominated, some method is at least as fast and as good.",
    )
    top += 0.34  # the reference's label stands above the axes
    axes = canvas.axes(0.75, top, WIDTH - 0.95, 5.8 - top - 0.62)
    _axes(axes, summary, methods)
    _reference(axes)
    _shade(axes, [_point(summary, summary.methods[name]) for name in summary.front])
    look = looks(summary)
    for line in dict.fromkeys(m.line for m in methods if m.line is not None):
        members = sorted((_point(summary, m) for m in methods if m.line == line), key=lambda p: p[0])
        color = line_color(summary, line)
        axes.plot([x for x, _ in members], [y for _, y in members], color=color, lw=1.4, alpha=0.7, zorder=2)
    for method in methods:
        speed, quality = _estimates(summary, method)
        color = look[method.name].color
        axes.errorbar(
            speed.value,
            quality.value,
            xerr=np.array([errors(speed)]).T,
            yerr=np.array([errors(quality)]).T,
            color=color,
            lw=0.9,
            alpha=0.55,
            zorder=3,
        )
        axes.plot(
            speed.value,
            quality.value,
            marker=look[method.name].marker,
            color=color,
            ms=7.5,
            mec="white",
            mew=0.8,
            ls="none",
            zorder=4,
        )
    _place_labels(canvas, axes, summary, methods)
    return canvas


def _estimates(summary: Summary, method: MethodSummary) -> tuple[Estimate, Estimate]:
    speed, quality = method.speed(summary.speed_name), method.quality
    assert speed is not None
    assert quality is not None
    return speed, quality


def _point(summary: Summary, method: MethodSummary) -> tuple[float, float]:
    speed, quality = _estimates(summary, method)
    return speed.value, quality.value


def _axes(axes: Axes, summary: Summary, methods: Sequence[MethodSummary]) -> None:
    pairs = [_estimates(summary, method) for method in methods]
    low, high = min(s.low for s, _ in pairs), max(s.high for s, _ in pairs)
    low, high = min(low, 1.0), max(high, PAPER[1])
    pad = 0.07 * (high - low)
    axes.set_xlim(low - pad, high + 1.6 * pad)
    low, high = min(q.low for _, q in pairs), max(q.high for _, q in pairs)
    middle, span = (low + high) / 2, max(high - low, _LEAST_SPAN) * 0.62
    bottom, top = middle - span, middle + span
    axes.set_ylim(bottom, top)
    axes.set_xlabel(f"{summary.speed_name} speedup over {named(summary.methods[summary.baseline])} (×)")
    if summary.pairwise:
        axes.set_ylabel("quality: probability that the judge prefers it to the baseline")
    else:
        axes.set_ylabel("quality: mean of the judge’s grades, 0 to 1")
    axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= min(top, 1.0 + 1e-9)])
    axes.grid(True)
    baseline = summary.methods[summary.baseline].quality
    if baseline is not None:
        axes.axhline(baseline.value, color=FAINT, lw=0.8, ls=(0, (4, 3)), zorder=1.5)
        axes.axvline(1.0, color=FAINT, lw=0.8, ls=(0, (4, 3)), zorder=1.5)


def _reference(axes: Axes) -> None:
    axes.axvspan(*PAPER, facecolor="#f2c230", alpha=0.2, edgecolor="none", zorder=1.2)
    axes.annotate(
        _PAPER_LABEL,
        (sum(PAPER) / 2, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color="#7a5c00",
        linespacing=1.1,
    )


def _shade(axes: Axes, front: Sequence[tuple[float, float]]) -> None:
    """Shade the area below and to the left of the front."""
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    xs, ys = [left], []
    for x, y in front:  # the slowest first, so quality falls
        ys += [y, y]
        xs += [x, x]
    if not ys:
        return
    axes.fill_between(xs[:-1], ys, bottom, color=SHADE, lw=0, zorder=1)


def _place_labels(canvas: Canvas, axes: Axes, summary: Summary, methods: Sequence[MethodSummary]) -> None:
    """Place each method's label where it covers no point and no other label. A label far from its point gets a line to
    it."""
    renderer = canvas.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    scale = canvas.figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    centers = {m.name: axes.transData.transform(_point(summary, m)) for m in methods}
    taken = [
        Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in centers.values()
    ]
    bars = [bar for m in methods for bar in _bars(axes, *_estimates(summary, m))]
    bars += _strokes(axes, summary, methods)
    look = looks(summary)
    shown = _labels(summary, methods)
    for method in sorted(methods, key=lambda m: -centers[m.name][0]):
        x, y = centers[method.name]
        text = axes.annotate(shown[method.name], (x, y), xycoords="figure pixels", fontsize=9)
        size = text.get_window_extent(renderer)
        box = _best(x, y, size.width, size.height, scale, frame, taken, bars)
        text.remove()
        axes.annotate(
            shown[method.name],
            _point(summary, method),
            xytext=((box.x0 - x) / scale, (box.y0 - y) / scale),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=9,
            color=readable(line_color(summary, method.line) if method.line else look[method.name].color),
            zorder=6,
        )
        others = [_gap(box, *center) for name, center in centers.items() if name != method.name]
        # Far from its point, or so near to another one that it could be taken for its label.
        if _gap(box, x, y) > min([16 * scale, *(0.8 * gap for gap in others)]):
            nearest = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
            axes.annotate(
                "",
                _point(summary, method),
                xytext=((nearest[0] - x) / scale, (nearest[1] - y) / scale),
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "lw": 0.6, "color": FAINT, "shrinkA": 0, "shrinkB": 3},
                zorder=3,
            )
        taken.append(Bbox([[box.x0 - 5 * scale, box.y0], [box.x1 + 5 * scale, box.y1]]))  # words apart


def _labels(summary: Summary, methods: Sequence[MethodSummary]) -> dict[str, str]:
    """A method's own label; its line is named at the line's fastest point."""
    out = {method.name: shortened(method.label or method.name, _LABEL) for method in methods}
    for line in dict.fromkeys(m.line for m in methods if m.line is not None):
        members = [m for m in methods if m.line == line]
        last = max(members, key=lambda m: _point(summary, m)[0])
        out[last.name] = f"{shortened(line, _LABEL)}: {out[last.name]}"
    return out


def _best(
    x: float,
    y: float,
    width: float,
    height: float,
    scale: float,
    frame: Bbox,
    taken: Sequence[Bbox],
    bars: Sequence[Bbox],
) -> Bbox:
    """The place for a label of this size that covers least, the nearest of equals."""
    best, least = Bbox.from_bounds(x, y, width, height), float("inf")
    for distance in _DISTANCES:
        for across, up in _PLACES:
            reach = distance * scale * (0.75 if across and up else 1.0)
            left = x + across * reach - (width if across < 0 else width / 2 if across == 0 else 0)
            bottom = y + up * reach - (height if up < 0 else height / 2 if up == 0 else 0)
            box = Bbox.from_bounds(left, bottom, width, height)
            cost = 1000.0 * sum(_overlap(box, other) > 0 for other in taken)
            cost += 40.0 * min(sum(_overlap(box, bar) > 0 for bar in bars), 5)
            cost += 5000.0 * (
                box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
            )
            cost += 2.0 * distance
            if cost < least:
                best, least = box, cost
    return best


def _bars(axes: Axes, speed: Estimate, quality: Estimate) -> list[Bbox]:
    """The error bars of a point, in pixels."""
    x0, y0 = axes.transData.transform((speed.low, quality.value))
    x1, _ = axes.transData.transform((speed.high, quality.value))
    x2, y2 = axes.transData.transform((speed.value, quality.low))
    _, y3 = axes.transData.transform((speed.value, quality.high))
    return [Bbox([[x0, y0 - 1], [x1, y0 + 1]]), Bbox([[x2 - 1, y2], [x2 + 1, y3]])]


def _strokes(axes: Axes, summary: Summary, methods: Sequence[MethodSummary]) -> list[Bbox]:
    """Where lines are drawn, in pixels: between the points of a line, and through the baseline."""
    lines = dict.fromkeys(m.line for m in methods if m.line is not None)
    paths = [sorted(_point(summary, m) for m in methods if m.line == line) for line in lines]
    base = summary.methods[summary.baseline]
    if base.quality is not None:
        left, right = axes.get_xlim()
        bottom, top = axes.get_ylim()
        paths += [[(left, base.quality.value), (right, base.quality.value)], [(1.0, bottom), (1.0, top)]]
    boxes = []
    for path in paths:
        corners = axes.transData.transform(path)
        for start, end in itertools.pairwise(corners):
            steps = max(int(np.hypot(*(end - start)) / 6), 1)
            boxes += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in np.linspace(start, end, steps)]
    return boxes


def _overlap(a: Bbox, b: Bbox) -> float:
    wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return wide * high if wide > 0 and high > 0 else 0.0


def _gap(box: Bbox, x: float, y: float) -> float:
    return float(np.hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0)))
