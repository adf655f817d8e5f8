"""What requests and follow-ups are drawn with: things, and the turn that comes of a request."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pasta.data.atlas.descriptions import draw_kind, draw_names
from pasta.data.atlas.facts import FACTS, KIND_OF, KINDS
from pasta.data.atlas.plan import Plan
from pasta.data.atlas.talk.people import fill, misspelt, plural, spell
from pasta.data.atlas.talk.wordings import TalkSplit, split_of_names
from pasta.data.atlas.tasks import split_of
from pasta.data.atlas.words import read_words

ASKS, CHOICES, NOUNS = map(read_words, ("requests", "choices", "nouns"))
#: Questions about one fact, with the thing and with a pronoun, and from the fact back to the thing.
FORWARD, ABOUT_IT, BACKWARD = map(read_words, ("forward", "about_it", "backward"))

#: How people write a small number.
COUNTS = {2: ("two", "2"), 3: ("three", "3"), 4: ("four", "4"), 5: ("five", "5")}


@dataclass(frozen=True)
class Turn:
    """One request with its answer: ``names`` and ``attribute`` are what a next turn can refer to,
    ``also`` what the turn before was about, if this one asked the same."""

    prompt: str
    plan: Plan
    names: tuple[str, ...] = ()
    attribute: str = ""
    also: tuple[str, ...] = ()


def draw_name(rng: random.Random, kinds: Sequence[str] = KINDS) -> str:
    return rng.choice(list(FACTS[draw_kind(rng, tuple(kinds))]))


def draw_any(rng: random.Random, count: int) -> list[str]:
    """So many different names, of any kinds."""
    names: list[str] = []
    while len(names) < count:
        names = list(dict.fromkeys([*names, draw_name(rng)]))
    return names


def draw_list(
    rng: random.Random, split: TalkSplit, sizes: dict[int, float], kinds: Sequence[str] = KINDS
) -> list[str]:
    """Names of one kind; those of more than two belong to the split as a combination."""
    while True:
        kind = rng.choice(list(kinds)) if rng.random() < 0.5 else draw_kind(rng, tuple(kinds))
        names = draw_names(rng, kind, sizes)
        if len(names) < 3 or split_of_names(names) == split:
            return names


def draw_set(rng: random.Random) -> tuple[list[str], str]:
    """All things that share a value, or all of a kind, with what people call them: "countries in Asia", "planets"."""
    way = rng.random()
    if way < 0.1:
        return list(FACTS["planets"]), rng.choice(("planets", "planets of the solar system"))
    if way < 0.2:
        kind = rng.choice(KINDS)
        return list(FACTS[kind]), kind
    while True:
        kind = rng.choice(list(CHOICES["sets"]))
        column, *phrases = rng.choice(CHOICES["sets"][kind])
        value = rng.choice([row[column] for row in FACTS[kind].values()])
        names = [name for name, row in FACTS[kind].items() if row[column] == value]
        if len(names) > 1:
            return names, fill(rng.choice(phrases), value)


def first_few(rng: random.Random, names: Sequence[str]) -> list[str]:
    """The first of some names, as many as ``COUNTS`` has words for."""
    return list(names[: rng.choice([n for n in COUNTS if n <= len(names)])])


def draw_some(rng: random.Random) -> tuple[list[str], str]:
    """The first few of a set, with what people call them: "four planets"."""
    names, called = draw_set(rng)
    names = first_few(rng, names)
    return names, f"{rng.choice(COUNTS[len(names)])} {called}"


def is_free(family: str, names: Sequence[str], split: TalkSplit) -> bool:
    """Whether a split may use the task of a family that has these names: training leaves held-out tasks alone."""
    return split != "train" or split_of(family, {"names": list(names)}) == "train"


def with_name(rng: random.Random, wording: str, name: str) -> str:
    """A wording with a thing in it: ``{x}`` as people call it, ``{xs}`` its plural, ``{n}`` its bare name.

    "What are tigers known for": a plural where the wording has a singular is how people slip.
    """
    return wording.format(x=spell(rng, name), xs=misspelt(rng, plural(name)), n=misspelt(rng, name))


def with_pronouns(wording: str, name: str) -> str:
    """A wording that speaks of a thing by pronouns: ``{p}`` he, ``{o}`` him, ``{s}`` his."""
    she = FACTS[KIND_OF[name]][name].get("pronoun") == "She"
    return wording.format(p="she" if she else "he", o="her" if she else "him", s="her" if she else "his")
