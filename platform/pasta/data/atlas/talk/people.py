"""How people name things: in any form, in lists with any separator, misspelt."""

import random
import re
from collections.abc import Sequence

from pasta.data.atlas.facts import KIND_OF, with_article
from pasta.data.atlas.talk.typos import typo
from pasta.data.atlas.words import read_words

_WORDS = read_words("manners")
#: Other names of things, beside surnames: "Galileo", "aluminum".
ALIASES: dict[str, tuple[str, ...]] = _WORDS["aliases"]


def plural(noun: str) -> str:
    if noun in _WORDS["irregular"]:
        return str(_WORDS["irregular"][noun])
    if noun.endswith("s") or " of " in noun:  # "moons", "number of legs"
        return noun
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("x", "ch", "sh")) else f"{noun}s"


def fill(wording: str, value: str) -> str:
    """A wording with its value; ``{v}s`` is the value's plural, and "a" before it becomes "an" where it must."""
    wording = wording.replace("{v}s", plural(value)).replace(" a {v}", f" {with_article(value)}")
    return wording.replace("{v}", value)


def spell(rng: random.Random, name: str) -> str:
    """One way in which people name a thing, misspelt one time in six."""
    return misspelt(rng, _called(rng, name))


def misspelt(rng: random.Random, name: str, rate: float = 0.16) -> str:
    return typo(rng, name) if rng.random() < rate else name


def _called(rng: random.Random, name: str) -> str:
    kind = KIND_OF.get(name, "")
    ways: tuple[str, ...]
    if name in ALIASES and rng.random() < 0.2:
        return rng.choice(ALIASES[name])
    if kind == "animals":
        ways = (name, name, f"the {name}", f"the {name}", plural(name), plural(name), with_article(name))
    elif kind == "instruments":
        ways = (name, name, f"the {name}", f"the {name}", with_article(name), plural(name))
    elif kind == "rivers":
        ways = (name, f"the {name}", f"the {name}", f"the {name} river", f"the river {name}", f"{name} river")
    elif kind == "scientists":
        surname = name.rsplit(" ", 1)[1]
        ways = (name, name, name, surname, surname)
    elif kind == "books":
        bare = name.removeprefix("The ")
        ways = (name, name, name, f'"{name}"', f"the book {name}", f"'{name}'", bare)
    elif kind == "planets":
        ways = (name, name, name, f"planet {name}", f"the planet {name}")
    elif kind == "elements":
        ways = (name, name, name, name.capitalize(), f"the element {name}")
    else:
        ways = (name,)
    return rng.choice(ways)


_GAPS = (
    (", ", " and "), (", ", " and "), (", ", " and "), (", ", ", and "), (", ", ", "), (" and ", " and "),
    (", ", " & "), (" & ", " & "), ("/", "/"), (" / ", " / "), ("; ", "; "), (", ", " plus "), ("\n", "\n"),
    ("\n- ", "\n- "), (" ", " "), (", ", " or "), (",", ","), (" + ", " + "), (", ", ", and also "),
    (", ", " as well as "), (" - ", " - "), (" | ", " | "), (" or ", " or "), (",\n", ",\n"),
)  # fmt: skip


def listed(rng: random.Random, names: Sequence[str]) -> str:
    """Names in one list, each kind called alike, with separators that people use."""
    state = rng.random()
    called = [_called(random.Random(f"{state}:{KIND_OF.get(name)}"), name) for name in names]
    rate = rng.choice((0.0, 0.0, 0.3))
    texts = [misspelt(rng, text, rate) for text in called]
    while True:
        middle, last = rng.choice(_GAPS)
        if middle != " " or all(" " not in text for text in texts):
            break
    before = middle if middle.startswith("\n") else ""
    head = middle.join(texts[:-1])
    return before + (head + last if head else "") + texts[-1]
