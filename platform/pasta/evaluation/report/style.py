"""How all figures look: sizes, colours, titles.

Figures are 8 inches wide and drawn at 200 dots an inch, so at 800 pixels a letter of 9 points is 12 pixels high.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pasta.evaluation.results.summary import MethodSummary, Summary
from pasta.files import write_whole
from pasta.statistics import Estimate, grouped

WIDTH = 8.0
_LONGEST_NAME = 30  # letters
_BATCH = 6
DPI = 200
INK, FAINT, SHADE = "#222222", "#666666", "#e9e9e9"

# Hues of Okabe and Ito's palette, told apart with any colour vision. Lines get the cool ones, in steps from light to
# dark in the order of their methods; methods without a line the warm ones.
_BASELINE = "#444444"
_LINES = ("#0072B2", "#009E73", "#6A3D9A", "#8C6D1F")
_SINGLES = ("#D55E00", "#E69F00", "#CC79A7", "#882255", "#B07C4F", "#999933")
_LINE_MARKERS, _SINGLE_MARKERS = "oD<>", "s^vphP"

_RC: Any = {  # matplotlib's type for keys is a list of everything it knows
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
    "text.parse_math": False,  # so that a dollar sign in a prompt starts no formula
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn in every figure."""

    color: str
    marker: str


def looks(summary: Summary) -> dict[str, Look]:
    """The look of each method, by name."""
    lines = grouped(summary.candidates, lambda method: method.line)
    out = {summary.baseline: Look(_BASELINE, "o")}
    for number, members in enumerate(lines.values()):
        hue, marker = _pick(_LINES, _LINE_MARKERS, number)
        for place, method in enumerate(members):
            out[method.name] = Look(_tint(hue, place, len(members)), marker)
    singles = [method.name for method in summary.candidates if method.line is None]
    for number, name in enumerate(singles):
        out[name] = Look(*_pick(_SINGLES, _SINGLE_MARKERS, number))
    return out


def _pick(colors: Sequence[str], markers: str, number: int) -> tuple[str, str]:
    """A colour for each method; when colours repeat, markers differ."""
    turn, place = divmod(number, len(colors))
    return colors[place], markers[(place + turn) % len(markers)]


def line_color(summary: Summary, line: str) -> str:
    """The hue of a line. One that the baseline alone is on comes last, so that the others keep theirs."""
    methods = [*summary.candidates, summary.methods[summary.baseline]]
    lines = list(dict.fromkeys(method.line for method in methods if method.line is not None))
    return _LINES[lines.index(line) % len(_LINES)]


def readable(color: str) -> str:
    """The color, darkened until it can be read as text on white."""
    red, green, blue = to_rgb(color)
    brightness = 0.3 * red + 0.59 * green + 0.11 * blue
    return _hex(part * min(1.0, 0.42 / max(brightness, 1e-6)) for part in (red, green, blue))


def darker(color: str) -> str:
    """A darker shade of the same hue."""
    return _hex(0.62 * part for part in to_rgb(color))


def _tint(hue: str, place: int, count: int) -> str:
    """Steps from a light tint over the hue itself to a dark shade."""
    if count == 1:
        return hue
    at = place / (count - 1)
    if at < 0.6:
        white = 0.6 * (1 - at / 0.6)
        return _hex(part + (1 - part) * white for part in to_rgb(hue))
    return _hex(part * (1 - 0.45 * (at - 0.6) / 0.4) for part in to_rgb(hue))


def _hex(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


@dataclass(slots=True)
class Canvas:
    """A figure whose parts are placed in inches from its top left corner."""

    figure: Figure
    height: float

    def resize(self, height: float) -> None:
        """Make it so high; what stands at the top stays there."""
        moved = [(text, (1 - text.get_position()[1]) * self.height) for text in self.figure.texts]
        self.figure.set_size_inches(WIDTH, height)
        for text, top in moved:
            text.set_y(1 - top / height)
        self.height = height

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Axes of this size."""
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height), **options
        )

    def text(self, left: float, top: float, text: str, **options: Any) -> float:
        """Write text, broken into lines at the figure's edge; returns the height it takes."""
        placed: dict[str, Any] = {"va": "top", "ha": "left", "linespacing": 1.25, **options}
        artist = self.figure.text(left / WIDTH, 1 - top / self.height, text, **placed)
        artist.set_text("\n".join(self._lines(artist, text, WIDTH - left - 0.15)))
        return self._extent(artist)[1]

    def titled(self, title: str, subtitle: str) -> float:
        """Write title and subtitle; returns the distance from the top at which the rest may begin."""
        top = 0.14
        top += self.text(0.15, top, title, fontsize=12, fontweight="bold") + 0.07
        return top + self.text(0.15, top, subtitle, fontsize=9, color=FAINT) + 0.1

    def text_width(self, texts: Iterable[str], fontsize: float = 9) -> float:
        """Inches that the widest of these texts takes."""
        widths = [0.0]
        for text in texts:
            artist = self.figure.text(0, 0, text, fontsize=fontsize)
            widths.append(self._extent(artist)[0])
            artist.remove()
        return max(widths)

    def _lines(self, artist: Any, text: str, width: float) -> list[str]:
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}".strip()
            artist.set_text(longer)
            if lines[-1] and self._extent(artist)[0] > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _extent(self, artist: Any) -> tuple[float, float]:
        box = artist.get_window_extent(self.figure.canvas.get_renderer())  # type: ignore[attr-defined]
        return box.width / self.figure.dpi, box.height / self.figure.dpi


@contextmanager
def report_style() -> Iterator[None]:
    """A context in which figures are drawn. Characters that the font lacks are boxes, without a warning for each."""
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def new_canvas(height: float) -> Canvas:
    """An empty figure ``height`` inches high."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return Canvas(figure, height)


def save(canvas: Canvas, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    buffer = io.BytesIO()
    canvas.figure.savefig(buffer, format="png", dpi=DPI)
    write_whole(path, buffer.getvalue())


def method_rows(
    canvas: Canvas, top: float, height: float, methods: Sequence[MethodSummary], notes: Sequence[str]
) -> Axes:
    """A panel from ``top`` to the figure's end with a row of this ``height`` a method, the first on top: its name on
    the left, its note right of the panel."""
    left = 0.3 + canvas.text_width(named(m) for m in methods)
    right = 0.25 + canvas.text_width(notes)
    canvas.resize(top + height * len(methods) + 0.62)
    axes = canvas.axes(left, top, WIDTH - left - right, height * len(methods))
    for row, note in enumerate(notes):
        axes.annotate(
            note,
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(methods)), [named(m) for m in methods], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    return axes


def errors(estimate: Estimate) -> tuple[float, float]:
    """How far the interval reaches below and above its value, as error bars want it."""
    return max(estimate.value - estimate.low, 0.0), max(estimate.high - estimate.value, 0.0)


def batches(summary: Summary) -> list[tuple[str, list[MethodSummary]]]:
    """The candidates in groups that can be told apart in one panel: a line each, and those without one."""
    groups = grouped(summary.candidates, lambda method: method.line or "")
    return [
        (name, members[at : at + _BATCH])
        for name, members in groups.items()
        for at in range(0, len(members), _BATCH)
    ]


def named(method: MethodSummary) -> str:
    """A method's name in a figure."""
    return shortened(method.title, _LONGEST_NAME)


def shortened(text: str, length: int) -> str:
    """One line of at most ``length`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
