"""The fact base: one pipe-separated file a kind of thing, true facts only.

``FACTS[kind][name][column]`` gives a value. Columns that only change a fact's grammar (an article, "its" turned
into "my") or that follow from another column (the element before) are computed here, so that each fact is
written down once.
"""

import csv
from functools import cache
from importlib import resources

Row = dict[str, str]

KINDS = ("countries", "elements", "planets", "animals", "instruments", "scientists", "books", "rivers")
#: Kinds whose names are spoken of with an article: "the tiger", but "France".
WITH_ARTICLE = frozenset({"animals", "instruments", "rivers"})
_ARTICLE_COLUMNS = {
    "elements": ("group",),
    "planets": ("type",),
    "animals": ("class", "young"),
    "scientists": ("job",),
    "books": ("kind",),
}
_MY_COLUMNS = {"animals": "trait", "rivers": "trait", "instruments": "trait", "planets": "feature"}


def with_article(noun: str) -> str:
    """``"owl" -> "an owl"``; a noun that takes no article ("fry") stays as it is."""
    if noun == "fry":
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@cache
def load(kind: str) -> dict[str, Row]:
    """Rows of one kind by name, in the order of the file, computed columns included."""
    text = resources.files(__package__).joinpath(f"{kind}.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines(), delimiter="|"))
    for index, row in enumerate(rows):
        for column in _ARTICLE_COLUMNS.get(kind, ()):
            row[f"{column}_a"] = with_article(row[column])
        if kind in _MY_COLUMNS:
            column = _MY_COLUMNS[kind]
            row[f"{column}_my"] = (
                row[column].replace("it rolls", "I roll").replace("its ", "my ").replace("it ", "I ")
            )
        if kind == "elements" and index:
            row["previous"] = rows[index - 1]["name"]
    return {row["name"]: row for row in rows}


FACTS: dict[str, dict[str, Row]] = {kind: load(kind) for kind in KINDS}
KIND_OF: dict[str, str] = {name: kind for kind, rows in FACTS.items() for name in rows}
#: How large a thing is, of those that can be compared: countries by area (thousand square kilometres), rivers by
#: length (kilometres), planets by diameter (kilometres).
SIZES: dict[str, int] = {name: int(row["size"]) for name, row in load("sizes").items()}


def spoken(name: str) -> str:
    """A name as it stands in running text: "the tiger", "France"."""
    return f"the {name}" if KIND_OF[name] in WITH_ARTICLE else name
