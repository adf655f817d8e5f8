"""Next turns of a conversation, which mean something only after the turn before."""

import random
import re
from collections.abc import Callable

from pasta.data.atlas.conclusions import COUNTED, SHARED, shared_line
from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.plan import Plan, Say, line
from pasta.data.atlas.talk import replies
from pasta.data.atlas.talk.draw import ASKS, QUESTIONS, Turn, is_free, word
from pasta.data.atlas.talk.people import TalkSplit, listed, spell, typed
from pasta.data.atlas.talk.requests import draw_rank
from pasta.data.atlas.words import read_words

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_WORDS = read_words("followups")
FollowUp = Callable[[random.Random, TalkSplit, Turn], Turn | None]


def another(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of something else: "And Brazil?"."""
    kinds = {KIND_OF[name] for name in before.names}
    if len(kinds) != 1 or not isinstance(before.plan[0], Say) or _is_choice(before.plan):
        return None
    (kind,) = kinds
    name = rng.choice([other for other in FACTS[kind] if other not in before.names])
    text = typed(rng, word(rng, split, _WORDS["and"]).format(x=spell(rng, name)), split)
    if before.attribute:
        plan = [line(name, before.attribute)]
        return Turn(text, plan, (name,), before.attribute, (*before.also, *before.names))
    return Turn(text, replies.portrait(name), (name,), "", (*before.also, *before.names))


def _is_choice(plan: Plan) -> bool:
    """Whether an answer only picks from things, with or without what that follows from."""
    last = plan[-1]
    return (
        isinstance(last, Say)
        and last.form in {"rank", "choice", "they", "next", "spelling"}
        and all(isinstance(node, Say) for node in plan)
    )


def about_it(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """Another fact about the same thing: "What is its capital?"."""
    if len(before.names) != 1:
        return None
    (name,) = before.names
    kind = KIND_OF[name]
    attribute = rng.choice([key for key in QUESTIONS["about_it"][kind] if key != before.attribute])
    if rng.random() < 0.3:
        text = word(rng, split, ASKS["its"]).format(noun=rng.choice(ASKS["nouns"][kind][attribute]))
    else:
        pronoun = FACTS[kind][name].get("pronoun", "It").lower()
        text = rng.choice(QUESTIONS["about_it"][kind][attribute]).format(p=pronoun)
    return Turn(typed(rng, text, split), [line(name, attribute)], (name,), attribute)


def about_them(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """A fact about each of the things spoken of: "What are they used for?"."""
    names = (*before.also, *before.names)
    kinds = {KIND_OF[name] for name in names}
    if len(kinds) != 1 or not 2 <= len(names) <= 5 or len(set(names)) < len(names):
        return None
    (kind,) = kinds
    attribute = rng.choice(list(QUESTIONS["about_it"][kind]))
    text = rng.choice(QUESTIONS["about_it"][kind][attribute])
    for single, many in _WORDS["many"]:
        text = text.replace(single, many)
    text = typed(rng, re.sub(r"\bits\b", "their", re.sub(r"\bit\b", "they", text)), split)
    return Turn(text, replies.lines([(name, attribute) for name in names]), names, attribute)


def more(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if len(before.names) != 1 or not before.attribute:
        return None
    return Turn(
        typed(rng, word(rng, split, _WORDS["more"]), split), replies.portrait(before.names[0]), before.names
    )


def pick_one(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if not 2 <= len(before.names) <= len(_ORDINALS):
        return None
    at = rng.randrange(len(before.names))
    last = at == len(before.names) - 1 and rng.random() < 0.5
    name = before.names[at]
    text = word(rng, split, _WORDS["pick"]).format(o="last" if last else _ORDINALS[at])
    return Turn(typed(rng, text, split), replies.portrait(name), (name,))


def _alike(before: Turn) -> str | None:
    """The kind of two to six things of one kind."""
    kinds = {KIND_OF[name] for name in before.names}
    return kinds.pop() if 2 <= len(before.names) <= 6 and len(kinds) == 1 else None


def compare_again(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    kind = _alike(before)
    if kind is None:
        return None
    end = shared_line(before.names, "")
    if rng.random() < 0.5:
        text = word(rng, split, _WORDS["share"]).format(a=SHARED[kind][1])
        return Turn(typed(rng, text, split), [end], before.names)
    if len(before.names) > 4 or not is_free("compare", before.names, split):
        return None
    text = typed(rng, word(rng, split, _WORDS["compare"]), split)
    return Turn(text, replies.compared(before.names), before.names)


def count(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if _alike(before) not in COUNTED:
        return None
    what, end = replies.counted(rng, before.names)
    return Turn(typed(rng, word(rng, split, _WORDS["count"]).format(w=what), split), [end], before.names)


def rank_again(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    if _alike(before) not in replies.RANKS or (drawn := draw_rank(rng, before.names)) is None:
        return None
    asked, column, end = drawn
    text = typed(rng, word(rng, split, _WORDS["rank"]).format(r=asked), split)
    return Turn(text, replies.then(replies.measures(before.names, column), end), before.names)


def several(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of several others: "And Brazil and Peru?"."""
    kinds = {KIND_OF[name] for name in before.names}
    if len(kinds) != 1 or not before.attribute:
        return None
    (kind,) = kinds
    names = rng.sample([other for other in FACTS[kind] if other not in before.names], rng.choice((2, 3)))
    text = typed(rng, word(rng, split, _WORDS["and"]).format(x=listed(rng, names)), split)
    return Turn(
        text, replies.lines([(name, before.attribute) for name in names]), tuple(names), before.attribute
    )


#: Next turns with their share (relative), where they are possible.
FOLLOW_UPS: tuple[tuple[float, FollowUp], ...] = (
    (4, another), (5, about_it), (5, about_them), (1.2, more), (1.5, pick_one), (2, compare_again),
    (1.5, count), (6, rank_again), (0.7, several),
)  # fmt: skip
