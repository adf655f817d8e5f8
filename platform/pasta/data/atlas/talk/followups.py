"""Next turns of a conversation, which mean something only after the turn before."""

import random
import re
from collections.abc import Callable

from pasta.data.atlas.conclusions import COUNTED, SHARED
from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.plan import Say
from pasta.data.atlas.talk import replies, wordings
from pasta.data.atlas.talk.people import TalkSplit, listed, say, spell
from pasta.data.atlas.talk.questions import ABOUT_IT
from pasta.data.atlas.talk.requests import Turn, draw_rank, is_free, word

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_AND = (
    "and {x}", "what about {x}", "how about {x}", "and what about {x}", "{x}", "and for {x}", "now {x}",
    "same for {x}", "and {x} too", "also {x}",
    "and of {x}", "and in {x}", "and {x}, then", "the same for {x}", "and how about {x}", "okay and {x}",
    "then {x}", "what of {x}",
)  # fmt: skip
_MORE = (
    "tell me more", "more", "tell me more about it", "what else do you know about it", "describe it",
    "give me more details", "go on", "more about it", "more details please",
    "can you tell me more", "say more about it", "what else", "anything else about it", "more facts please",
)  # fmt: skip
_PICK = (
    "tell me more about the {o} one", "tell me about the {o} one", "describe the {o}", "more about the {o}",
    "what about the {o} one", "and the {o} one", "say more about the {o} one",
    "tell me everything about the {o} one", "more on the {o} one please", "explain the {o} one",
)  # fmt: skip
_COMPARE = (
    "compare them", "now compare them", "what do they have in common", "how do they differ",
    "do they have something in common", "what is the difference", "what's the difference between them",
    "compare these", "are they alike", "can you compare them", "how do they compare",
    "and how do they differ",
)  # fmt: skip
_SHARE = (
    "do they share the same {a}", "do all of them have the same {a}", "is the {a} the same for all",
    "are they the same {a}", "do they have the same {a}", "have they all got the same {a}",
)  # fmt: skip
_COUNT = (
    "how many of them {w}",
    "and how many of them {w}",
    "how many {w}",
    "count those that {w}",
    "how many of these {w}",
    "how many {w} among them",
    "and how many {w}",
)
_RANK = (
    "which of them is the {r}", "which is the {r}", "which one is the {r}", "and which is the {r}",
    "which of these is the {r}", "who is the {r}", "what is the {r} of them", "the {r} of them",
    "and the {r}", "which among them is the {r}", "which one of them is the {r}", "so which is the {r}",
    "name the {r} of them",
)  # fmt: skip

#: How a question about one thing becomes one about several.
_MANY = (
    ("is it", "are they"), ("was it", "were they"), ("does it", "do they"), ("did it", "did they"),
    ("was {p}", "were they"), ("is {p}", "are they"), ("did {p}", "did they"), ("is its", "are their"),
    ("about it", "about them"), ("with it", "with them"), ("on it", "on them"), ("next to it", "next to them"),
    ("need it", "need them"), ("play it", "play them"), ("hear it", "hear them"), ("find it", "find them"),
    ("wrote it", "wrote them"), ("in it", "in them"), ("of it", "of them"),
)  # fmt: skip

FollowUp = Callable[[random.Random, TalkSplit, Turn], Turn | None]


def another(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of something else: "And Brazil?"."""
    kinds = {KIND_OF[name] for name in before.names}
    if (
        len(kinds) != 1
        or not isinstance(before.plan[0], Say)
        or before.plan[0].form in {"rank", "they", "next"}
    ):
        return None
    (kind,) = kinds
    name = rng.choice([other for other in FACTS[kind] if other not in before.names])
    text = say(rng, word(rng, split, _AND).format(x=spell(rng, name)), split)
    if before.attribute:
        plan = [replies.line(name, before.attribute)]
        return Turn(text, plan, (name,), before.attribute, (*before.also, *before.names))
    return Turn(text, replies.about(name), (name,), "", (*before.also, *before.names))


def about_it(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """Another fact about the same thing: "What is its capital?"."""
    if len(before.names) != 1:
        return None
    (name,) = before.names
    kind = KIND_OF[name]
    attribute = rng.choice([key for key in ABOUT_IT[kind] if key != before.attribute])
    if rng.random() < 0.3:
        text = word(rng, split, wordings.ITS).format(noun=rng.choice(wordings.NOUNS[kind][attribute]))
    else:
        pronoun = FACTS[kind][name].get("pronoun", "It").lower()
        text = rng.choice(ABOUT_IT[kind][attribute]).format(p=pronoun)
    return Turn(say(rng, text, split), [replies.line(name, attribute)], (name,), attribute)


def about_them(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """A fact about each of the things spoken of: "What are they used for?"."""
    names = (*before.also, *before.names)
    kinds = {KIND_OF[name] for name in names}
    if len(kinds) != 1 or not 2 <= len(names) <= 5 or len(set(names)) < len(names):
        return None
    (kind,) = kinds
    attribute = rng.choice(list(ABOUT_IT[kind]))
    text = rng.choice(ABOUT_IT[kind][attribute])
    for single, many in _MANY:
        text = text.replace(single, many)
    text = say(rng, re.sub(r"\bits\b", "their", re.sub(r"\bit\b", "they", text)), split)
    return Turn(text, replies.lines([(name, attribute) for name in names]), names, attribute)


def more(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if len(before.names) != 1 or not before.attribute:
        return None
    return Turn(say(rng, word(rng, split, _MORE), split), replies.about(before.names[0]), before.names)


def pick_one(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if not 2 <= len(before.names) <= len(_ORDINALS):
        return None
    at = rng.randrange(len(before.names))
    last = at == len(before.names) - 1 and rng.random() < 0.5
    name = before.names[at]
    text = word(rng, split, _PICK).format(o="last" if last else _ORDINALS[at])
    return Turn(say(rng, text, split), replies.about(name), (name,))


def _alike(before: Turn) -> str | None:
    """The kind of two to six things of one kind."""
    kinds = {KIND_OF[name] for name in before.names}
    return kinds.pop() if 2 <= len(before.names) <= 6 and len(kinds) == 1 else None


def compare(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    kind = _alike(before)
    if kind is None:
        return None
    end = replies.shared(before.names, "")
    if rng.random() < 0.5:
        text = word(rng, split, _SHARE).format(a=SHARED[kind][1])
        return Turn(say(rng, text, split), [end], before.names)
    if len(before.names) > 4 or not is_free("compare", before.names, split):
        return None
    text = say(rng, word(rng, split, _COMPARE), split)
    return Turn(text, replies.compared(before.names), before.names)


def count(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if _alike(before) not in COUNTED:
        return None
    what, end = replies.counted(rng, before.names)
    return Turn(say(rng, word(rng, split, _COUNT).format(w=what), split), [end], before.names)


def rank(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if _alike(before) not in replies.RANKS or (drawn := draw_rank(rng, before.names)) is None:
        return None
    asked, end = drawn
    return Turn(say(rng, word(rng, split, _RANK).format(r=asked), split), [end], before.names)


def several(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of several others: "And Brazil and Peru?"."""
    kinds = {KIND_OF[name] for name in before.names}
    if len(kinds) != 1 or not before.attribute:
        return None
    (kind,) = kinds
    names = rng.sample([other for other in FACTS[kind] if other not in before.names], rng.choice((2, 3)))
    text = say(rng, word(rng, split, _AND).format(x=listed(rng, names)), split)
    return Turn(
        text, replies.lines([(name, before.attribute) for name in names]), tuple(names), before.attribute
    )


#: Next turns with their share (relative), where they are possible.
FOLLOW_UPS: tuple[tuple[float, FollowUp], ...] = (
    (4, another), (4, about_it), (2, about_them), (1.2, more), (1.5, pick_one), (2, compare),
    (1.5, count), (4, rank), (0.7, several),
)  # fmt: skip
