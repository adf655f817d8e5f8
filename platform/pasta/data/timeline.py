"""Threads over time, drawn with characters: one row a thread, time to the right."""

import bisect
import itertools
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pasta.interpreter import ThreadTrace, Trace

Unit = Literal["steps", "seconds"]

DECODES, FORKS, WAITS, JOINS, FIRST, LAST = "━┳·◆╰╯"
LEGEND = f"{DECODES} decodes   {FORKS} forks   {WAITS} waits   {JOINS} joins"
_ASCII = str.maketrans("━┳·◆╰╯│…", "=+.*`'|~")
_COLORS = ("\033[36m", "\033[33m", "\033[32m", "\033[35m", "\033[34m", "\033[31m")
_BOLD, _DIM, _RESET = "\033[1m", "\033[2m", "\033[0m"
_MIN_BAR = 10


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row: a thread decodes from ``start`` to ``end`` (steps or seconds, from 0), but for its ``waits``.

    ``num_tokens`` are its own, without a chunk's closing tag; ``estimate`` is the length that the promise gave, 0
    for the main thread. ``forks`` and ``joins`` are the moments at which chunks are forked and joined.
    """

    label: str
    start: float
    end: float
    num_tokens: int
    depth: int = 0
    estimate: int = 0
    forks: tuple[float, ...] = ()
    joins: tuple[float, ...] = ()
    waits: tuple[tuple[float, float], ...] = ()


def render_timeline(
    trace: Trace,
    width: int = 100,
    color: bool = False,
    *,
    topics: Sequence[str] = (),
    sync_id: int | None = None,
) -> str:
    """Draw a trace ``width`` columns wide, over critical-path steps.

    ``topics[i]`` labels thread i. With ``sync_id`` the syncs that had nothing to wait for are marked too.
    """
    return render_rows(timeline_rows(trace, topics, sync_id), width, color)


def timeline_rows(trace: Trace, topics: Sequence[str] = (), sync_id: int | None = None) -> list[TimelineRow]:
    """The rows of a trace, in reading order. The arguments are those of :func:`render_timeline`."""
    lanes: list[TimelineRow] = []

    def add(thread: ThreadTrace) -> None:
        children = [child for child in trace.threads if child.parent == thread.id]
        waited = dict(thread.waits)
        joins = [
            waited.get(step, step)
            for token, step in zip(thread.token_ids, thread.steps, strict=True)
            if step in waited or token == sync_id
        ]
        topic = topics[thread.id] if thread.id < len(topics) else ""
        lanes.append(
            TimelineRow(
                label=topic or ("main" if thread.parent is None else f"chunk {thread.id}"),
                start=thread.forked_at,
                end=thread.steps[-1] if thread.steps else thread.forked_at,
                num_tokens=max(len(thread.token_ids) - (thread.parent is not None), 0),
                depth=thread.depth,
                estimate=thread.estimate,
                forks=tuple(child.forked_at for child in children),
                joins=tuple(joins),
                waits=thread.waits,
            )
        )
        for child in children:
            add(child)

    for thread in trace.threads:
        if thread.parent is None:
            add(thread)
    return lanes


def render_rows(
    lanes: Sequence[TimelineRow], width: int = 100, color: bool = False, unit: Unit = "steps"
) -> str:
    """Draw rows ``width`` columns wide (at least 40), with an axis above."""
    width = max(width, 40)
    labels = ["  " * lane.depth + _printable(lane.label) for lane in lanes]
    notes = [f"{lane.num_tokens}" + (f"/{lane.estimate}" if lane.estimate else "") for lane in lanes]
    label_width = min(max(map(cells, labels), default=0), max(width // 3, 8))
    note_width = max(map(len, notes), default=0) + len(" tokens")
    bar = max(width - label_width - note_width - 2, _MIN_BAR)
    total = max((lane.end for lane in lanes), default=0.0)
    if unit == "steps" and 0 < total < bar:
        bar = math.ceil(total)  # one column a step
    scale = bar / total if total else 0.0
    out = [" " * (label_width + 1) + _axis(total, bar, unit)]
    for index, (lane, label, note) in enumerate(zip(lanes, labels, notes, strict=True)):
        row = "".join(_row(lane, bar, scale))
        if color:
            row = _paint(row, _BOLD if lane.depth == 0 else _COLORS[index % len(_COLORS)])
        out.append(f"{_fit(label, label_width)} {row} {note:>{note_width - len(' tokens')}} tokens")
    return "\n".join(line.rstrip() for line in out)


def to_ascii(drawing: str) -> str:
    """The same drawing for a terminal that shows ASCII only."""
    return drawing.translate(_ASCII).encode("ascii", "replace").decode()


def _row(lane: TimelineRow, bar: int, scale: float) -> list[str]:
    cells = [" "] * bar

    def first(moment: float) -> int:
        return min(max(int(moment * scale + 1e-9), 0), bar - 1)

    def last(moment: float) -> int:
        return min(max(math.ceil(moment * scale - 1e-9) - 1, 0), bar - 1)

    if lane.end <= lane.start:
        return cells
    for column in range(first(lane.start), max(last(lane.end), first(lane.start)) + 1):
        cells[column] = DECODES
    if lane.depth:
        cells[max(last(lane.end), first(lane.start))] = LAST
        cells[first(lane.start)] = FIRST
    for start, end in lane.waits:
        for column in range(first(start), last(end) + 1):
            cells[column] = WAITS
    for moment in lane.forks:
        cells[last(moment)] = FORKS
    for moment in lane.joins:
        cells[last(moment)] = JOINS
    return cells


def _axis(total: float, bar: int, unit: Unit) -> str:
    """Ticks at round numbers, about twelve columns apart."""
    if not total:
        return ""
    rough = total * 12 / bar
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    if unit == "steps":
        step = max(1.0, step)
    digits = max(0, -math.floor(math.log10(step)))
    axis = [" "] * bar
    for tick in range(int(total / step) + 1):
        text = "│" + (f"{tick * step:.0f}" if unit == "steps" else f"{tick * step:.{digits}f} s")
        column = int(tick * step * bar / total)
        if column + len(text) <= bar:
            axis[column : column + len(text)] = text
    return "".join(axis)


def _paint(row: str, color: str) -> str:
    row = re.sub(f"{WAITS}+", lambda waits: f"{_RESET}{_DIM}{waits[0]}{_RESET}{color}", row)
    return f"{color}{row}{_RESET}"


def _printable(text: str) -> str:
    """Replace control characters, which a terminal would interpret."""
    return "".join(c if c.isprintable() else "·" for c in text)


def cells(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    return sum(map(_columns, text))


def cut(text: str, width: int) -> str:
    """``text``, or its beginning and ``…`` where it takes more than ``width`` columns in a terminal (at least one)."""
    ends = list(itertools.accumulate(map(_columns, text)))
    if not ends or ends[-1] <= width:
        return text
    return text[: bisect.bisect_right(ends, width - 1)] + "…"


def _columns(letter: str) -> int:
    # Not combining(): marks above and below a letter need not be of a class, as in Thai and Hindi.
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _fit(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - cells(text))
