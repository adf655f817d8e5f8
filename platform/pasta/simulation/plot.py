"""Draws the figures of a study. Matplotlib is imported when one is drawn."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.files import write_whole

if TYPE_CHECKING:
    from pasta.simulation.study import Point, Series, StudyResults

LOADS, SIZES = "loads.png", "sizes.png"
#: Okabe and Ito's hues, told apart with any colour vision.
_COLORS = {None: "#444444", "local": "#0072B2", "spread": "#D55E00", "auto": "#009E73"}
_MARKERS = {None: "o", "local": "D", "spread": "s", "auto": "^"}
_RC: Any = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "text.parse_math": False,
}


def draw_loads(results: "StudyResults", unit: str, title: str, path: Path) -> bool:
    """Draw latencies, speedup and throughput over the loads of a sweep; false if there are fewer than two loads."""
    if len({point.load for point in results.points}) < 2:
        return False
    with _panels(path, 2, 2, title) as (figure, panels):
        end, first, speed, rate = panels
        _lines(end, results.points, lambda p: p.metrics.total_s.p50, "-")
        _lines(end, results.points, lambda p: p.metrics.total_s.p95, ":", labelled=False)
        end.set_title("Seconds to the end")
        _lines(first, results.points, lambda p: p.metrics.ttft_s.p50, "-", labelled=False)
        _lines(first, results.points, lambda p: p.metrics.ttft_s.p95, ":", labelled=False)
        first.set_title("Seconds to the first token")
        for found in results.crossovers:
            look = _look(found.series)
            speed.plot([*found.speedups], [*found.speedups.values()], **look)
            if found.until is not None:
                speed.axvline(found.until, color=look["color"], lw=0.8, ls="--")
        speed.axhline(1.0, color="#444444", lw=0.9)
        speed.set(
            title="Sequential ÷ parallel, median", ylabel="speedup", ylim=(0, None), xlim=end.get_xlim()
        )
        _lines(rate, results.points, lambda p: p.metrics.requests_s, "-", labelled=False)
        rate.set(title="Answers a second", ylabel="1/s", ylim=(0, None))
        for panel in panels:
            panel.set_xlabel(unit)
        for panel in (end, first):
            _seconds(panel)
        _legend(figure, end, "; dotted: 95th percentile")
    return True


def draw_sizes(results: "StudyResults", goals: dict[str, float], title: str, path: Path) -> bool:
    """Draw each goal's metric over the numbers of replicas that were tried; false if nothing was sized."""
    from pasta.simulation.study import goal_value  # it needs pydantic, which benchmarks that draw do without

    if not results.sizes:
        return False
    with _panels(path, 1, len(goals), title) as (figure, panels):
        for panel, (name, goal) in zip(panels, goals.items(), strict=True):
            for size in results.sizes:
                look = _look(size.series)
                xs = [point.replicas for point in size.tried]
                ys = [goal_value(point.metrics, name) for point in size.tried]
                panel.plot(xs, ys, label=size.series.name, **look)
                if size.replicas is not None:
                    panel.axvline(size.replicas, color=look["color"], lw=0.8, ls="--")
            panel.axhline(goal, color="#444444", lw=0.9)
            what, which, _ = name.split("_")
            panel.set(title=f"{_GOALS[what]}, {_SHARES[which]}", xlabel="replicas")
            _seconds(panel)
        _legend(figure, panels[0], "; line across: the goal")
    return True


_GOALS = {"ttft": "Seconds to the first token", "total": "Seconds to the end", "token": "Seconds a token"}
_SHARES = {"p50": "median", "p95": "95th percentile"}


@contextmanager
def new_figure(path: Path, width: float, height: float, title: str) -> Iterator[Any]:
    """A figure to draw on, in inches, which is written to ``path`` when the block ends."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=200)
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=11, fontweight="bold")
        yield figure
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


@contextmanager
def _panels(path: Path, rows: int, columns: int, title: str) -> Iterator[tuple[Any, list[Any]]]:
    with new_figure(path, 8.0 if columns < 3 else 11.0, 3.1 * rows + 0.5, title) as figure:
        yield figure, [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]


def _seconds(axes: Any) -> None:
    """A logarithmic axis of seconds, in plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set(yscale="log", ylabel="s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, axes: Any, more: str) -> None:
    """Which series is which, below all panels."""
    handles, names = axes.get_legend_handles_labels()
    names[-1] += more
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))


def _lines(
    axes: Any,
    points: "Sequence[Point]",
    value: "Callable[[Point], float | None]",
    style: str,
    *,
    labelled: bool = True,
) -> None:
    for series in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == series]
        xs, ys = [point.load for point in own], [value(point) for point in own]
        axes.plot(xs, ys, ls=style, label=series.name if labelled else None, **_look(series))


def _look(series: "Series") -> dict[str, Any]:
    placement = series.placement
    return {"color": _COLORS[placement], "marker": _MARKERS[placement], "ms": 4, "lw": 1.4}
