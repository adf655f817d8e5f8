"""What requests and follow-ups are drawn with: things, wordings of a split, and the turn that comes of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pasta.data.atlas.descriptions import draw_kind
from pasta.data.atlas.facts import FACTS, KINDS
from pasta.data.atlas.family import weighted_choice
from pasta.data.atlas.plan import Plan
from pasta.data.atlas.talk.people import TalkSplit, part, split_of_names
from pasta.data.atlas.tasks import split_of
from pasta.data.atlas.words import read_words

ASKS, QUESTIONS = map(read_words, ("requests", "questions"))


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


def draw_list(
    rng: random.Random, split: TalkSplit, sizes: dict[int, float], kinds: Sequence[str] = KINDS
) -> list[str]:
    """Names of one kind; those of more than two belong to the split as a combination."""
    while True:
        kind = rng.choice(list(kinds)) if rng.random() < 0.5 else draw_kind(rng, tuple(kinds))
        rows = list(FACTS[kind])
        names = rng.sample(rows, min(weighted_choice(rng, sizes), len(rows)))
        if len(names) < 3 or split_of_names(names) == split:
            return names


def word(rng: random.Random, split: TalkSplit, options: Sequence[str]) -> str:
    return rng.choice(part(tuple(options), split))


def is_free(family: str, names: Sequence[str], split: TalkSplit) -> bool:
    """Whether a split may use the task of a family that has these names: training leaves held-out tasks alone."""
    return split != "train" or split_of(family, {"names": list(names)}) == "train"
