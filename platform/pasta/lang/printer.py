r"""Prints documents in the text form.

A literal tag in TEXT is escaped with a backslash. Backslashes keep their meaning elsewhere (LaTeX and
code survive): only a run right before a tag is an escape, as in a shell's double quotes. A run of
k backslashes before a literal tag is printed as 2k+1, before a real tag as 2k.
"""

import re

from pasta.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    CLOSE,
    PROMISE,
    SYNC,
    Chunk,
    Document,
    Item,
    Text,
)

# Longest first: "<sync/>" ends with "/>".
TAG = re.compile("|".join(re.escape(tag) for tag in (SYNC, ASYNC_CLOSE, ASYNC_OPEN, PROMISE, CLOSE)))
#: A tag with all backslashes before it. A run of them is tried once, from its beginning: it may be very long.
TAG_WITH_BACKSLASHES = re.compile(rf"(?<!\\)(\\*+)({TAG.pattern})")
_TRAILING_BACKSLASHES = re.compile(r"(?<!\\)\\++\Z")


def to_text(document: Document) -> str:
    """The text form of a document; ``parse`` reads it back to an equal document."""
    out: list[str] = []
    _write(document.items, out, closed=False)
    return "".join(out)


def _write(items: tuple[Item, ...], out: list[str], *, closed: bool) -> None:
    for index, item in enumerate(items):
        if isinstance(item, Text):
            text = TAG_WITH_BACKSLASHES.sub(lambda match: match[1] * 2 + "\\" + match[2], item.text)
            tag_follows = closed or index + 1 < len(items)
            if tag_follows:
                text = _TRAILING_BACKSLASHES.sub(lambda match: match[0] * 2, text)
            out.append(text)
        elif isinstance(item, Chunk):
            out.append(f'{PROMISE} topic="{item.topic}" tokens="{item.tokens}"{CLOSE}{ASYNC_OPEN}')
            _write(item.items, out, closed=True)
            out.append(ASYNC_CLOSE)
        else:
            out.append(SYNC)
