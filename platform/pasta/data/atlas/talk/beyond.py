"""What lies beyond the facts: greetings, thanks, and questions that the atlas cannot answer."""

import random

from pasta.data.atlas.facts import FACTS, KINDS, WITH_ARTICLE
from pasta.data.atlas.plan import Plan, Say
from pasta.data.atlas.talk import replies
from pasta.data.atlas.talk.draw import ASKS, FORWARD, NOUNS, Turn, draw_name, with_name
from pasta.data.atlas.talk.frames import typed
from pasta.data.atlas.talk.people import plural
from pasta.data.atlas.talk.wordings import TalkSplit, word
from pasta.data.atlas.words import read_words

_WORDS = read_words("outside")


def small_talk(rng: random.Random, split: TalkSplit) -> Turn:
    form = rng.choice(("hello", "hello", "hello", "welcome", "bye", "self", "self", "self"))
    text = word(rng, split, read_words("small_talk")[form])
    plans: dict[str, Plan] = {
        "hello": [Say("hello", {}, ""), Say("topics", {})],
        "welcome": [Say("welcome", {}, "")],
        "bye": [Say("bye", {}, "")],
        "self": replies.OUTSIDE,
    }
    return Turn(typed(rng, text, split), plans[form])


def outside(rng: random.Random, split: TalkSplit) -> Turn:
    """Something that the atlas does not know."""
    (draw,) = rng.choices(
        (_whole, _on_topic, _composed, _of_known, _noun_of_known, _of_unknown), (1, 1.5, 4, 2.5, 1, 3)
    )
    return Turn(typed(rng, draw(rng, split), split), replies.OUTSIDE)


def _whole(rng: random.Random, split: TalkSplit) -> str:
    return word(rng, split, _WORDS["whole"])


def _on_topic(rng: random.Random, split: TalkSplit) -> str:
    return word(rng, split, _WORDS["requests"]).format(t=word(rng, split, _WORDS["topics"]))


def _composed(rng: random.Random, split: TalkSplit) -> str:
    return _filled(rng, split, word(rng, split, _WORDS["composed"]))


def _filled(rng: random.Random, split: TalkSplit, text: str) -> str:
    """A request with each slot filled by a word of its own."""
    for slot, options in (*_WORDS["slots"].items(), ("num", ())):
        while f"{{{slot}}}" in text:
            value = word(rng, split, options) if options else str(rng.randint(1, 99))
            text = text.replace(f"{{{slot}}}", value, 1)
    return text


def _of_known(rng: random.Random, split: TalkSplit) -> str:
    """A known thing, and something that nobody wrote down about it: "how much does a kilo of copper cost"."""
    kind = rng.choice(KINDS)
    text = _filled(rng, split, word(rng, split, _WORDS["of_known"][kind]))
    return with_name(rng, text, rng.choice(list(FACTS[kind])))


def _noun_of_known(rng: random.Random, split: TalkSplit) -> str:
    kind = rng.choice(KINDS)
    noun = word(rng, split, _WORDS["no_facts"][kind])
    return with_name(rng, word(rng, split, NOUNS["of"]).replace("{noun}", noun), draw_name(rng, (kind,)))


def _of_unknown(rng: random.Random, split: TalkSplit) -> str:
    """What could be asked of a thing that the atlas knows, of one that it does not."""
    kind = rng.choice(KINDS)
    name = word(rng, split, _WORDS["unknown"][kind])
    article = rng.choice(("", "the ")) if kind in WITH_ARTICLE else ""
    attribute = rng.choice(list(FORWARD[kind]))
    way = rng.random()
    if way < 0.55:
        text = word(rng, split, FORWARD[kind][attribute])
    elif way < 0.7:
        text = word(rng, split, NOUNS["of"]).replace("{noun}", rng.choice(NOUNS["nouns"][kind][attribute]))
    else:
        who = kind == "scientists" and rng.random() < 0.5
        text = word(rng, split, ASKS["who"] if who else rng.choice((ASKS["about"], ASKS["about_asked"])))
    return text.format(x=article + name, xs=plural(name), n=name)
