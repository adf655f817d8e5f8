"""Choices and comparisons: which of several things is the largest, has a value or has it not, how they differ."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pasta.data.atlas.conclusions import COUNTED, SHARED, shared_line
from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.family import weighted_choice
from pasta.data.atlas.plan import Plan, Say
from pasta.data.atlas.sentences import write
from pasta.data.atlas.talk import replies
from pasta.data.atlas.talk.draw import ASKS, CHOICES, Turn, draw_list, is_free
from pasta.data.atlas.talk.frames import typed
from pasta.data.atlas.talk.people import fill, listed, spell
from pasta.data.atlas.talk.wordings import TalkSplit, sentence, split_of_names, word

#: What a thing of a kind is.
_THING = {
    "countries": "country", "elements": "element", "planets": "planet", "animals": "animal",
    "instruments": "instrument", "scientists": "scientist", "books": "book", "rivers": "river",
}  # fmt: skip


def compare(rng: random.Random, split: TalkSplit) -> Turn:
    while True:
        names = draw_list(rng, split, {2: 4, 3: 3, 4: 1}, tuple(SHARED))
        if is_free("compare", names, split):
            break
    if len(names) == 2 and rng.random() < 0.5:
        a, b = (spell(rng, name) for name in names)
        text = word(rng, split, ASKS["compare_pair"]).format(a=a, b=b)
    else:
        text = word(rng, split, ASKS["compare"]).format(list=listed(rng, names))
    return Turn(typed(rng, text, split), replies.compared(names), tuple(names))


def then_compare(rng: random.Random, split: TalkSplit) -> Turn:
    names = draw_list(rng, split, {2: 2, 3: 4, 4: 4, 5: 3, 6: 1}, tuple(SHARED))
    text = word(rng, split, ASKS["then_compare"]).format(list=listed(rng, names))
    plan = replies.described_then(names, [shared_line(names, "")])
    return Turn(typed(rng, text, split), plan, tuple(names))


def then_count(rng: random.Random, split: TalkSplit) -> Turn:
    names = draw_list(rng, split, {2: 1, 3: 4, 4: 3, 5: 2}, tuple(COUNTED))
    what, end = replies.counted(rng, names)
    text = word(rng, split, ASKS["each"]).format(list=listed(rng, names))
    text += word(rng, split, CHOICES["count_tails"]).format(w=what)
    return Turn(typed(rng, text, split), replies.described_then(names, [end]), tuple(names))


@dataclass(frozen=True)
class Rank:
    """Which of some things is the largest, oldest ...: how a prompt asks for it, a line for each thing that leads to
    the answer (``replies.measures``), and the answer. ``column`` decides."""

    asked: str
    column: str
    lines: list[tuple[Say, ...]]
    end: Say

    @property
    def plan(self) -> Plan:
        return replies.then(self.lines, self.end)


def draw_rank(rng: random.Random, split: TalkSplit, names: Sequence[str]) -> Rank | None:
    """A rank that some things have; None if nobody can tell."""
    column, high, low = rng.choice(replies.RANKS[KIND_OF[names[0]]])
    highest = rng.random() < 0.6
    what = high if highest else low
    end = replies.ranked(names, column, highest=highest, what=what)
    if end is None:
        return None
    lines = replies.measures(names, column, highest=highest)
    return Rank(asked_rank(rng, split, what, len(names)), column, lines, end)


def asked_rank(rng: random.Random, split: TalkSplit, what: str, count: int) -> str:
    """The word for a rank: of two things also "larger"."""
    of_two = CHOICES["rank_words_of_two"].get(what)
    if of_two and count == 2 and rng.random() < 0.5:
        return sentence(rng, of_two)
    return word(rng, split, CHOICES["rank_words"][what])


def _ranked_list(rng: random.Random, split: TalkSplit) -> tuple[list[str], Rank]:
    while True:
        names = draw_list(rng, split, {2: 4, 3: 4, 4: 3, 5: 1}, tuple(replies.RANKS))
        if (drawn := draw_rank(rng, split, names)) is not None:
            return names, drawn


def rank(rng: random.Random, split: TalkSplit) -> Turn:
    """Which is the largest of several things, with or without a portrait of each first."""
    if rng.random() < 0.1:
        names = list(FACTS["planets"])
        if (drawn := draw_rank(rng, split, names)) is not None:
            text = word(rng, split, CHOICES["rank_of_all"]).format(r=drawn.asked)
            return Turn(typed(rng, text, split), [drawn.end], tuple(names))
    names, found = _ranked_list(rng, split)
    texts = listed(rng, names)
    if rng.random() < 0.25:
        text = word(rng, split, ASKS["each"]).format(list=texts)
        text += word(rng, split, CHOICES["rank_tails"]).format(r=found.asked)
        sizes = found.lines if found.column == "size" else []  # the portraits tell the rest
        end = [*itertools.chain(*sizes), found.end]
        return Turn(typed(rng, text, split), replies.described_then(names, end), tuple(names))
    options = (
        CHOICES["rank_asked"] if rng.random() < 0.45 else CHOICES["rank_verbs"][found.end.fields["what"]]
    )
    text = word(rng, split, options).format(r=found.asked, x=texts, k=_THING[KIND_OF[names[0]]])
    return Turn(typed(rng, text, split), found.plan, tuple(names))


def given(rng: random.Random, split: TalkSplit) -> Turn:
    """A choice by values that the prompt tells: the last steps of a choice, by themselves."""
    names, found = _ranked_list(rng, split)
    told = " ".join(write(say.form, say.fields) for say, *_ in found.lines)
    text = word(rng, split, CHOICES["given"]).format(facts=told, r=found.asked)
    return Turn(typed(rng, text, split), found.plan, tuple(names))


#: The numbers that choices go by: centuries, planets, places by size, atomic numbers; and all that are one token.
_CENTURIES = (14, 21)
_RANGES = (_CENTURIES, (1, 9), (1, 65), (1, 55), (1, 121))


def compare_numbers(rng: random.Random, split: TalkSplit) -> Turn:
    """Which of some numbers is the largest, or all in order: a model that was never asked cannot pick by number."""
    while True:
        bounds = rng.choice(_RANGES)
        drawn = rng.sample(range(*bounds), weighted_choice(rng, {2: 4, 3: 4, 4: 2, 5: 1}))
        if split_of_names([str(number) for number in drawn]) == split:
            break
    if rng.random() < 0.25:
        text = word(rng, split, CHOICES["ordered"]).format(x=listed(rng, [str(number) for number in drawn]))
        return Turn(typed(rng, text, split), replies.in_order(drawn))
    centuries = bounds == _CENTURIES and rng.random() < 0.6
    names = {number: f"the {number}th century" if centuries else str(number) for number in drawn}
    high, low = ("latest", "earliest") if centuries else ("largest", "smallest")
    what = rng.choice((high, low))
    says = [Say("number", {"n": str(number)}) for number in drawn]
    lines = list(zip(says, replies.best_so_far(drawn, highest=what == high), strict=True))
    of_two = len(drawn) == 2 and rng.random() < 0.5
    asked = sentence(rng, CHOICES["number_words_of_two" if of_two else "number_words"][what])
    text = word(rng, split, CHOICES["numbers"]).format(
        r=asked, x=listed(rng, list(names.values())), k="century" if centuries else "number"
    )
    chosen = names[max(drawn) if what == high else min(drawn)]
    return Turn(typed(rng, text, split), replies.then(lines, Say("rank", {"name": chosen, "what": what})))


def which_of(rng: random.Random, split: TalkSplit) -> Turn:
    """Which one of several things has a value, or has it not."""
    while True:
        kind = rng.choice(list(CHOICES["phrases"]))
        column, attribute, has, has_not = rng.choice(CHOICES["phrases"][kind])
        value = rng.choice([row[column] for row in FACTS[kind].values()])
        negated = rng.random() < 0.35
        wanted = replies.Wanted(column, value, negated)
        ones = [name for name in FACTS[kind] if wanted.fits(name)]
        others = [name for name in FACTS[kind] if name not in ones]
        size = weighted_choice(rng, {3: 5, 4: 2} if negated else {2: 3, 3: 5, 4: 2})
        if not ones or len(others) < size - 1:
            continue
        name = rng.choice(ones)
        names = [name, *rng.sample(others, size - 1)]
        rng.shuffle(names)
        if size == 2 or split_of_names(names) == split:
            break
    texts = listed(rng, names)
    if negated and column == SHARED[kind][0] and rng.random() < 0.3:
        text = word(rng, split, CHOICES["odd_one"]).format(x=texts)
    else:
        phrase = fill(word(rng, split, has_not if negated else has), value)
        text = word(rng, split, CHOICES["one_of"]).format(x=texts, w=phrase, k=_THING[kind])
    return Turn(typed(rng, text, split), replies.picked(names, attribute, wanted), (name,), attribute)
