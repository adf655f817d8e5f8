"""Draws how the cost of a step grows. Matplotlib is imported when a picture is drawn."""

from pathlib import Path
from typing import Any

from pasta.simulation.plot import new_figure

#: Milliseconds a step: shape → part → point → decoder.
Growth = dict[str, dict[str, dict[int, dict[str, float]]]]
_TITLES = {"lanes": "lanes of one request", "requests": "requests at once", "context": "tokens in the cache"}
#: Okabe and Ito's hues, told apart with any colour vision.
_LOOKS: dict[str, dict[str, Any]] = {
    "ours int8": {"color": "#0072B2", "marker": "o"},
    "ours int4": {"color": "#009E73", "marker": "^"},
    "ours bfloat16": {"color": "#56B4E9", "marker": "D"},
    "ours float32": {"color": "#6A3D9A", "marker": "s"},
    "llama.cpp q8_0": {"color": "#D55E00", "marker": "o", "ls": "--"},
    "llama.cpp q4_0": {"color": "#CC79A7", "marker": "^", "ls": "--"},
    "llama.cpp bf16": {"color": "#E69F00", "marker": "D", "ls": "--"},
    "llama.cpp f32": {"color": "#8C6D1F", "marker": "s", "ls": "--"},
}


def draw_growth(growth: Growth, path: Path) -> bool:
    """One row a shape, one panel for lanes, requests and context each; false if no part has two points."""
    rows = {
        shape: drawn
        for shape, parts in growth.items()
        if (drawn := {part: points for part, points in parts.items() if len(points) > 1})
    }
    if not rows:
        return False
    columns = [part for part in _TITLES if any(part in parts for parts in rows.values())]
    width, height = 3.4 * len(columns) + 0.6, 2.7 * len(rows) + 0.7
    with new_figure(path, width, height, "Least milliseconds a step") as figure:
        grid = figure.subplots(len(rows), len(columns), squeeze=False)
        named: dict[str, Any] = {}
        for (shape, parts), panels in zip(rows.items(), grid, strict=True):
            for part, axes in zip(columns, panels, strict=True):
                if part not in parts:
                    axes.set_visible(False)
                    continue
                named |= _lines(axes, parts[part])
                axes.set(title=f"{shape}: {_TITLES[part]}", xscale="log", ylim=(0, None))
                points = sorted(parts[part])
                axes.set_xticks(points, [str(point) for point in points])
                axes.minorticks_off()
            panels[0].set_ylabel("ms")
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower center",
            ncols=min(len(named), 2 * len(columns)),
        )
    return True


def _lines(axes: Any, points: dict[int, dict[str, float]]) -> dict[str, Any]:
    """One line a decoder; returns them by name."""
    xs = sorted(points)
    names = dict.fromkeys(name for point in xs for name in points[point])
    return {
        name: axes.plot(xs, [points[x][name] for x in xs], ms=4, lw=1.4, **_LOOKS.get(name, {}))[0]
        for name in names
    }
