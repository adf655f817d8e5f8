"""Requests that name a thing first, or last, and ask about "it": "Mars, the planet: has it any moons?"."""

import random

from pasta.data.atlas.facts import KIND_OF
from pasta.data.atlas.talk.draw import ABOUT_IT, with_pronouns
from pasta.data.atlas.talk.people import spell
from pasta.data.atlas.talk.wordings import TalkSplit, word
from pasta.data.atlas.words import read_words

_WORDS = read_words("topics")


def pronoun_question(rng: random.Random, split: TalkSplit, name: str, attribute: str) -> str:
    """A question about one fact."""
    options = ABOUT_IT[KIND_OF[name]][attribute]
    return _around(rng, split, name, with_pronouns(word(rng, split, options), name))


def pronoun_portrait(rng: random.Random, split: TalkSplit, name: str) -> str:
    """A request to describe the thing."""
    kind = KIND_OF[name]
    options = _WORDS["portrait_of_person" if kind == "scientists" else "portrait"]
    text = word(rng, split, options)
    return _around(rng, split, name, with_pronouns(text, name))


def _around(rng: random.Random, split: TalkSplit, name: str, asked: str) -> str:
    thing = spell(rng, name)
    if rng.random() < 0.15:
        return word(rng, split, _WORDS["tails"]).format(q=asked, x=thing)
    leads = _WORDS["leads_of"][KIND_OF[name]] if rng.random() < 0.5 else _WORDS["leads"]
    lead = word(rng, split, leads).format(x=thing)
    # A sentence of its own is followed by a question with or without a capital.
    return lead + (asked[0].upper() + asked[1:] if lead.endswith(". ") and rng.random() < 0.6 else asked)
