"""The plan of an answer: its statements in order, grouped into parts. Document and grading follow from it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pasta.data.atlas.facts import KIND_OF, spoken
from pasta.data.atlas.sentences import STYLES, fact_fields, write
from pasta.lang import Chunk, Codec, Document, Item, Sync, Text
from pasta.lang.document import in_tens


@dataclass(frozen=True)
class Say:
    """One statement: a sentence form, its fields, and the layout characters in front of it."""

    form: str
    fields: dict[str, str]
    before: str = " "
    subject: str = ""


@dataclass(frozen=True)
class Part:
    """A part that depends on nothing outside the prompt and its topic: it becomes a chunk."""

    topic: str
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Await:
    """From here on the text depends on the parts before: it becomes a sync."""


Node = Say | Part | Await
Plan = Sequence[Node]

#: How a list of parts or steps may be laid out, and how a prompt asks for it.
LAYOUTS: dict[str, str] = {
    "bullets": "Use bullet points.",
    "numbered": "Use a numbered list.",
    "paragraphs": "Use short paragraphs.",
    "inline": "Use a single paragraph.",
}


def lead(layout: str, index: int) -> str:
    """The characters that open item ``index`` (from 0) in a layout."""
    return {"bullets": "\n- ", "numbered": f"\n{index + 1}. ", "paragraphs": "\n\n", "inline": " "}[layout]


def after(layout: str) -> str:
    """The characters between the last item and what follows the list."""
    return " " if layout == "inline" else "\n\n"


def intro(form: str, layout: str) -> Say:
    """An opening line; forms that exist with a colon and with a full stop suit both lists and paragraphs."""
    return Say(form if layout in {"bullets", "numbered"} else f"{form}.", {}, "")


def line(name: str, attribute: str, before: str = "") -> Say:
    """One fact about one thing."""
    form = f"{KIND_OF[name]}.line.{attribute}"
    return Say(form, fact_fields(form, name) or {}, before, name)


def describe(name: str, style: str, before: str, between: str = " ") -> tuple[Say, ...]:
    """The sentences of a style on one thing; facts that do not exist are left out."""
    out: list[Say] = []
    kind = KIND_OF[name]
    for index in range(len(STYLES[style][kind])):
        form = f"{kind}.{style}.{index}"
        fields = fact_fields(form, name)
        if fields is not None:
            out.append(Say(form, fields, between if out else before, name))
    return tuple(out)


def sheet(name: str) -> tuple[Say, ...]:
    head = Say("sheet.head", {"title": spoken(name)}, "\n\n", name)
    return (head, *describe(name, "sheet", "\n", "\n"))


def statements(plan: Plan) -> Iterator[Say]:
    """Every statement in reading order."""
    for node in plan:
        if isinstance(node, Say):
            yield node
        elif isinstance(node, Part):
            yield from statements(node.items)


def to_document(plan: Plan) -> Document:
    """The annotated answer, with provisional estimates."""
    return with_estimates(Document(_items(plan)), lambda items: _guess(Document(items)))


def _items(plan: Plan) -> tuple[Item, ...]:
    out: list[Item] = []
    for node in plan:
        if isinstance(node, Say):
            out.append(Text(node.before + write(node.form, node.fields)))
        elif isinstance(node, Part):
            out.append(Chunk(node.topic, 10, _items(node.items)))
        else:
            out.append(Sync())
    return tuple(out)


def with_estimates(document: Document, count_tokens: Callable[[tuple[Item, ...]], int]) -> Document:
    """The document with every estimate set to its chunk's length, rounded up to a multiple of 10.

    ``count_tokens`` gives the length in tokens of a chunk's items, nested tags included; nested chunks get their
    estimates first.
    """

    def fill(items: tuple[Item, ...]) -> tuple[Item, ...]:
        out: list[Item] = []
        for item in items:
            if isinstance(item, Chunk):
                inner = fill(item.items)
                item = Chunk(item.topic, in_tens(count_tokens(inner)), inner)
            out.append(item)
        return tuple(out)

    return Document(fill(document.items))


def token_counter(codec: Codec) -> Callable[[tuple[Item, ...]], int]:
    """Counts the tokens of a chunk's items, for ``with_estimates``."""
    return lambda items: len(codec.encode(Document(items)))


def _guess(document: Document) -> int:
    """Words and punctuation marks, six for each tag: close to the atlas tokenizer's count."""
    total = 0
    for item in document.items:
        if isinstance(item, Text):
            total += len(re.findall(r"\w+|[^\w\s]|\n+", item.text))
        elif isinstance(item, Chunk):
            total += 8 + _guess(Document(item.items))
        else:
            total += 1
    return total
