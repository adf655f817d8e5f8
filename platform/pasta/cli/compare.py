"""``pasta compare``: what changed between two evaluations."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pasta.cli.terminal import shorten
from pasta.data.timeline import cells
from pasta.errors import UserError
from pasta.evaluation.results.compare import (
    Change,
    Comparison,
    Measure,
    Moved,
    compare_sides,
    read_side,
    split_side,
)

_IDS = 5
_PROMPT = 48


def compare_evaluations(
    a: str, b: str, method: str | None, top: int, scores: Sequence[Measure], *, as_json: bool
) -> int:
    """Print the comparison of two evaluations (``DIR`` or ``DIR:METHOD``), of ``scores`` too; returns the exit code.
    Raises UserError."""
    if method is not None and split_side(a)[1] and split_side(b)[1]:
        raise UserError(
            f"--method: {method!r} has no effect, since A and B both name theirs; expected it for one that does not"
        )
    found = compare_sides(read_side(a, method), read_side(b, method), top, scores)
    text = (
        json.dumps(asdict(found), indent=2, ensure_ascii=False)
        if as_json
        else "\n".join(comparison_lines(found))
    )
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
    return 0


def comparison_lines(found: Comparison) -> list[str]:
    """The comparison in lines for people."""
    lines = [_side("A", found.a), _side("B", found.b), *_prompts(found)]
    lines += [f"note: {note}" for note in found.notes]
    lines += ["", "configuration"]
    if found.configuration:
        rows = [[entry.key, _shown(entry.a), "->", _shown(entry.b)] for entry in found.configuration]
        lines += _table(rows)
    else:
        lines.append("  no difference")
    lines += [
        "",
        *_table([["", "A", "B", "change", "95% interval", "", "prompts"], *map(_row, found.changes)]),
    ]
    if found.families:
        rows = [["family", "measure", "A", "B", "change", "95% interval", "", "prompts"]]
        for family, changes in found.families.items():
            rows += [[family if not n else "", *_row(change)] for n, change in enumerate(changes)]
        lines += ["", *_table(rows)]
    for name, moved in found.moved.items():
        if moved:
            what = f"{name} most" + (f" ({found.speed})" if name.startswith("speed") else "")
            lines += ["", what, *_table(map(_moved, moved))]
    return lines


def _side(name: str, side: dict[str, Any]) -> str:
    told = [f"{side['prompts']} prompts"]
    told += [f"{side[key]} {word}" for key, word in _COUNTED.items() if side[key]]
    return f"{name}  {side['directory']}: {side['method']} (baseline {side['baseline']}), {', '.join(told)}"


_COUNTED = {"cut": "cut at a limit", "skipped": "skipped", "invalid": "with an invalid verdict"}


def _prompts(found: Comparison) -> Iterable[str]:
    prompts = found.prompts
    yield f"prompts in common: {prompts.common}"
    for ids, what in (
        (prompts.only_a, "only in A"),
        (prompts.only_b, "only in B"),
        (prompts.altered, "of one id but with other messages, left out"),
    ):
        if ids:
            yield f"  {len(ids)} {what}: {', '.join(ids[:_IDS])}{', …' if len(ids) > _IDS else ''}"


def _row(change: Change) -> list[str]:
    def number(value: float) -> str:
        return f"×{value:.3f}" if change.kind == "ratio" else f"{value:+.3f}"

    interval = (
        "" if change.low is None or change.high is None else f"{number(change.low)} to {number(change.high)}"
    )
    verdict = {None: "too few prompts", True: "changed", False: "no change shown"}[change.is_change]
    return [
        change.name,
        f"{change.a:.4g}",
        f"{change.b:.4g}",
        number(change.change),
        interval,
        verdict,
        str(change.count),
    ]


def _moved(moved: Moved) -> list[str]:
    return [moved.key, f"{moved.a:.3f}", "->", f"{moved.b:.3f}", shorten(moved.prompt, _PROMPT)]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns side by side, indented."""
    lines = [list(row) for row in rows]
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    padded = [
        [cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=True)] for row in lines
    ]
    return [("  " + "  ".join(row)).rstrip() for row in padded]
