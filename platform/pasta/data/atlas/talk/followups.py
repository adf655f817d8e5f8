"""Next turns of a conversation, which mean something only after the turn before."""

import random
import re
from collections.abc import Callable, Sequence

from pasta.data.atlas.conclusions import COUNTED, SHARED, shared_line
from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.plan import Plan, Say, line
from pasta.data.atlas.talk import replies
from pasta.data.atlas.talk.choices import draw_rank
from pasta.data.atlas.talk.draw import ABOUT_IT, CHOICES, NOUNS, Turn, is_free, with_pronouns
from pasta.data.atlas.talk.frames import typed
from pasta.data.atlas.talk.people import fill, listed, spell
from pasta.data.atlas.talk.wordings import TalkSplit, word
from pasta.data.atlas.words import read_words

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_COUNTS = ("", "", "two", "three", "four", "five", "six")
_WORDS = read_words("followups")
FollowUp = Callable[[random.Random, TalkSplit, Turn], Turn | None]


def another(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of something else: "And Brazil?"."""
    kind = _kind_of(before.names)
    if kind is None or not isinstance(before.plan[0], Say) or _is_choice(before.plan):
        return None
    others = [other for other in FACTS[kind] if other not in before.names]
    if not others:
        return None
    name = rng.choice(others)
    text = typed(rng, word(rng, split, _WORDS["and"]).format(x=spell(rng, name)), split)
    if before.attribute:
        plan = [line(name, before.attribute)]
        return Turn(text, plan, (name,), before.attribute, (*before.also, *before.names))
    return Turn(text, replies.portrait(name), (name,), "", (*before.also, *before.names))


def _kind_of(names: Sequence[str]) -> str | None:
    """The kind of things that are all of one kind."""
    kinds = {KIND_OF[name] for name in names}
    return kinds.pop() if len(kinds) == 1 else None


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
    attribute = rng.choice([key for key in ABOUT_IT[kind] if key != before.attribute])
    if rng.random() < 0.25:
        text = word(rng, split, NOUNS["its"]).format(noun=rng.choice(NOUNS["nouns"][kind][attribute]))
        if kind == "scientists":
            text = with_pronouns(re.sub(r"\bits\b", "{s}", text), name)
    else:
        text = with_pronouns(word(rng, split, ABOUT_IT[kind][attribute]), name)
    text = typed(rng, _led(rng, split, text), split)
    return Turn(text, [line(name, attribute)], (name,), attribute)


def _led(rng: random.Random, split: TalkSplit, text: str) -> str:
    """A next question with "and" or the like before it, now and then."""
    if rng.random() < 0.7 or text.startswith("and "):
        return text
    return word(rng, split, _WORDS["leads"]) + text


def about_them(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """A fact about each of the things spoken of: "What are they used for?"."""
    names = (*before.also, *before.names)
    kind = _kind_of(names)
    if kind is None or not 2 <= len(names) <= 5 or len(set(names)) < len(names):
        return None
    attribute = rng.choice(list(ABOUT_IT[kind]))
    text = word(rng, split, ABOUT_IT[kind][attribute])
    for single, many in _WORDS["many"]:
        text = re.sub(rf"(?<!\w){re.escape(single)}(?!\w)", many, text)
    text = typed(rng, _led(rng, split, text.replace("{p}", "they")), split)
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
    return _kind_of(before.names) if 2 <= len(before.names) <= 6 else None


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
    if _alike(before) not in replies.RANKS or (drawn := draw_rank(rng, split, before.names)) is None:
        return None
    text = word(rng, split, _WORDS["rank"]).format(r=drawn.asked, n=_COUNTS[len(before.names)])
    return Turn(typed(rng, text, split), drawn.plan, before.names)


def one_of_them(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """Which of them has a value, or has it not."""
    kind = _alike(before)
    if kind is None or len(set(before.names)) < len(before.names):
        return None
    found = []
    for column, attribute, has, has_not in CHOICES["phrases"][kind]:
        values = [FACTS[kind][name][column] for name in before.names]
        for name, value in zip(before.names, values, strict=True):
            if values.count(value) == 1:
                found.append((name, attribute, has, replies.Wanted(column, value, negated=False)))
            others = [other for other in values if other != value]
            if len(others) == len(values) - 1 > 1 and len(set(others)) == 1:
                found.append((name, attribute, has_not, replies.Wanted(column, others[0], negated=True)))
    if not found:
        return None
    name, attribute, phrases, wanted = rng.choice(found)
    text = word(rng, split, _WORDS["one_of_them"])
    text = text.format(w=fill(word(rng, split, phrases), wanted.value), n=_COUNTS[len(before.names)])
    return Turn(typed(rng, text, split), replies.picked(before.names, attribute, wanted), (name,), attribute)


def several(rng: random.Random, split: TalkSplit, before: Turn) -> Turn | None:
    """The same of several others: "And Brazil and Peru?"."""
    kind = _kind_of(before.names)
    if kind is None or not before.attribute:
        return None
    others = [other for other in FACTS[kind] if other not in before.names]
    if len(others) < 3:
        return None
    names = rng.sample(others, rng.choice((2, 3)))
    text = typed(rng, word(rng, split, _WORDS["and"]).format(x=listed(rng, names)), split)
    return Turn(
        text, replies.lines([(name, before.attribute) for name in names]), tuple(names), before.attribute
    )


#: Next turns with their share (relative), where they are possible.
FOLLOW_UPS: tuple[tuple[float, FollowUp], ...] = (
    (4, another), (7, about_it), (4, about_them), (1.2, more), (1.5, pick_one), (2, compare_again),
    (1.5, count), (6, rank_again), (3, one_of_them), (0.7, several),
)  # fmt: skip
