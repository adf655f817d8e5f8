"""Prints text and drawings in whatever the terminal can show."""

import os
import shutil
import sys

from pasta.data.timeline import cut, to_ascii


def print_drawing(text: str) -> None:
    """Print text with drawn lines, in ASCII where stdout's encoding lacks its characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = to_ascii(text)
    print(text, flush=True)


def columns(default: int, most: int | None = None) -> int:
    """The terminal's width in characters, ``most`` at most; ``default`` where stdout is no terminal."""
    width = shutil.get_terminal_size((default, 24)).columns
    return width if most is None else min(width, most)


def wants_color() -> bool:
    """Whether stdout is a terminal that shows colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def shorten(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` columns, two at least, without control characters."""
    return cut(" ".join("".join(c if c.isprintable() else " " for c in text).split()), max(width, 2))
