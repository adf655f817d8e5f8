"""Draws the token budget, tokens of an answer by kind: a bar for each method."""

from collections.abc import Sequence

from pasta.evaluation.report.style import WIDTH, Canvas, method_rows, new_canvas
from pasta.evaluation.results.summary import MethodSummary, Summary

_ROW = 0.36
#: Kinds in reading order, what a person calls them, and their colors (Okabe and Ito's).
KINDS = {
    "text": ("text of the answer", "#c4c4c4"),
    "promise": ("promise tags", "#0072B2"),
    "topic": ("topics", "#56B4E9"),
    "estimate": ("length estimates", "#009E73"),
    "async_end": ("chunk ends", "#E69F00"),
    "sync": ("syncs", "#D55E00"),
    "skeleton": ("skeletons", "#CC79A7"),
}
_OTHER = ("#882255", "#999933", "#8C6D1F", "#444444")


def draw_budget(summary: Summary) -> Canvas | None:
    """Mean tokens an answer by kind; None if nothing was answered."""
    methods = [m for m in summary.methods.values() if m.structure is not None]
    if not methods:
        return None
    kinds = kinds_of(methods)
    canvas = new_canvas(1.0)
    top = canvas.titled(
        "Tokens an answer costs, by what they are spent on",
        "Means over all answers, those that were cut included. Overhead: the share that is not text of the answer.",
    )
    legend = 0.22 * -(-len(kinds) // 4) + 0.05
    axes = method_rows(canvas, top + legend, _ROW, methods, [_note(m) for m in methods])
    reached = [0.0] * len(methods)
    for kind, (title, color) in kinds.items():
        widths = [m.structure.budget.get(kind, 0.0) if m.structure else 0.0 for m in methods]
        axes.barh(
            range(len(methods)), widths, left=reached, height=0.68, color=color, lw=0, label=title, zorder=2
        )
        reached = [at + width for at, width in zip(reached, widths, strict=True)]
    axes.set_xlim(0, max(reached) * 1.02 or 1)
    axes.grid(True, axis="x")
    axes.set_xlabel("tokens an answer")
    handles, labels = axes.get_legend_handles_labels()
    canvas.figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.15 / WIDTH, 1 - top / canvas.height),
        ncols=4,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.1,
        columnspacing=1.4,
        labelspacing=0.4,
    )
    return canvas


def kinds_of(methods: Sequence[MethodSummary]) -> dict[str, tuple[str, str]]:
    """The kinds that occur, in order, with title and color."""
    seen = dict.fromkeys(
        kind for m in methods if m.structure for kind, mean in m.structure.budget.items() if mean
    )
    known = {kind: KINDS[kind] for kind in KINDS if kind in seen}
    others = [kind for kind in seen if kind not in KINDS]
    return known | {
        kind: (kind.replace("_", " "), _OTHER[number % len(_OTHER)]) for number, kind in enumerate(others)
    }


def _note(method: MethodSummary) -> str:
    assert method.structure is not None
    return f"{method.structure.tokens:.0f} tokens, {method.structure.overhead:.1%} overhead"
