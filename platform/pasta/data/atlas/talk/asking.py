"""Questions about facts: forwards, from a value back to its thing, with yes or no, and for all things with a value."""

import random
from collections.abc import Sequence

from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.family import join, weighted_choice
from pasta.data.atlas.plan import Plan, Say, line
from pasta.data.atlas.talk import replies, topics
from pasta.data.atlas.talk.draw import (
    BACKWARD,
    CHOICES,
    COUNTS,
    FORWARD,
    NOUNS,
    Turn,
    draw_list,
    draw_name,
    draw_set,
    first_few,
    with_name,
)
from pasta.data.atlas.talk.frames import typed
from pasta.data.atlas.talk.people import fill, listed, plural, spell
from pasta.data.atlas.talk.wordings import TalkSplit, word
from pasta.data.atlas.words import read_words

_YES_NO = read_words("yes_no")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
#: Names in a set that is asked for as a whole.
_MAX_SET = 14
#: Things that share a value, so many of which a question back from it may have as its answer.
_MAX_OWNERS = 4


def fact(rng: random.Random, split: TalkSplit) -> Turn:
    """A question about one fact: with a noun for it, with a verb, or with the thing named before or after."""
    name = draw_name(rng)
    kind = KIND_OF[name]
    attribute = rng.choice(list(FORWARD[kind]))
    way = rng.random()
    if way < 0.25:
        text = topics.pronoun_question(rng, split, name, attribute)
    elif way < 0.5:
        noun = rng.choice(NOUNS["nouns"][kind][attribute])
        text = with_name(rng, word(rng, split, NOUNS["of"]).replace("{noun}", noun), name)
    else:
        text = with_name(rng, word(rng, split, FORWARD[kind][attribute]), name)
    return Turn(typed(rng, text, split), [line(name, attribute)], (name,), attribute)


def facts(rng: random.Random, split: TalkSplit) -> Turn:
    """Two facts about one thing, or one fact about several."""
    if rng.random() < 0.4:
        name = draw_name(rng)
        nouns = NOUNS["nouns"][KIND_OF[name]]
        one, other = rng.sample(list(nouns), 2)
        text = word(rng, split, NOUNS["of_both"]).format(
            x=spell(rng, name), noun=rng.choice(nouns[one]), other=rng.choice(nouns[other])
        )
        plan = [line(name, one), line(name, other, " ")]
        return Turn(typed(rng, text, split), plan, (name,), other)
    names = draw_list(rng, split, {2: 3, 3: 4, 4: 3, 5: 1})
    kind = KIND_OF[names[0]]
    attribute = rng.choice(list(FORWARD[kind]))
    if rng.random() < 0.5:
        noun = rng.choice(NOUNS["nouns"][kind][attribute])
        text = word(rng, split, NOUNS["of_several"])
        text = text.replace("{noun}s", plural(noun)).format(noun=noun, list=listed(rng, names))
    else:
        text = word(rng, split, FORWARD[kind][attribute]).format(
            x=listed(rng, names), xs=join([plural(name) for name in names]), n=join(names)
        )
    several = replies.lines([(name, attribute) for name in names])
    return Turn(typed(rng, text, split), several, tuple(names), attribute)


def quiz(rng: random.Random, split: TalkSplit) -> Turn:
    """Several questions at once, from things to their values and back."""
    asked, texts = [], []
    for _ in range(weighted_choice(rng, {2: 4, 3: 3, 4: 2, 5: 1})):
        if rng.random() < 0.5:
            (name, *_), attribute, text = _back(rng, split, _ALONE)
        else:
            name = draw_name(rng)
            attribute = rng.choice(list(FORWARD[KIND_OF[name]]))
            text = with_name(rng, word(rng, split, FORWARD[KIND_OF[name]][attribute]), name)
        asked.append((name, attribute))
        texts.append(text)
    text = rng.choice(("? ", "? ", "? ", "?\n", ", and ", " and ", "? And ", "; ")).join(texts)
    return Turn(typed(rng, text, split), replies.lines(asked), tuple(name for name, _ in asked))


#: Names, attribute, value, and the questions that lead from the value to the names.
_Backward = tuple[tuple[str, ...], str, str, tuple[str, ...]]


def _backwards() -> list[_Backward]:
    """Names, attribute, value and questions of every value that few things of a kind have."""
    out = []
    for kind, rows in BACKWARD.items():
        for column, attribute, questions in rows:
            owners: dict[str, list[str]] = {}
            for name, row in FACTS[kind].items():
                owners.setdefault(row[column], []).append(name)
            out += [
                (tuple(names), attribute, value, questions)
                for value, names in owners.items()
                if len(names) <= _MAX_OWNERS
            ]
    return out


_BACKWARDS = _backwards()
_ALONE = [row for row in _BACKWARDS if len(row[0]) == 1]
_SHARED = [row for row in _BACKWARDS if len(row[0]) > 1]
#: Verbs that a work's phrase begins with, which a question about it brings itself.
_WORK_VERBS = ("finding ", "seeing ", "explaining ", "naming ", "showing that ")
_DETERMINERS = ("its ", "his ", "her ", "the ", "a ", "an ")


def _back(
    rng: random.Random, split: TalkSplit, rows: Sequence[_Backward]
) -> tuple[tuple[str, ...], str, str]:
    """The things that have a value, which attribute it is, and a question from the value to them."""
    while True:
        names, attribute, value, questions = rng.choice(rows)
        bare = next((value.removeprefix(each) for each in _DETERMINERS if value.startswith(each)), "")
        wording = word(rng, split, questions)
        if bare or "{b}" not in wording:
            break
    stripped = next((value.removeprefix(verb) for verb in _WORK_VERBS if value.startswith(verb)), value)
    ordinal = _ORDINALS[int(value) - 1] if value.isdigit() and int(value) < 9 else value
    return names, attribute, wording.format(v=value, w=stripped, o=ordinal, b=bare)


def backward(rng: random.Random, split: TalkSplit) -> Turn:
    """A question from a value to its thing, now and then to all the things that have it."""
    names, attribute, text = _back(rng, split, _SHARED if rng.random() < 0.1 else _ALONE)
    if len(names) > 1:
        return Turn(typed(rng, text, split), replies.set_of(names), names)
    return Turn(typed(rng, text, split), [line(names[0], attribute)], names, attribute)


def yes_no(rng: random.Random, split: TalkSplit) -> Turn:
    kind = rng.choice(list(_YES_NO))
    column, attribute, questions = rng.choice(_YES_NO[kind])
    name = rng.choice(list(FACTS[kind]))
    right = FACTS[kind][name][column]
    value = right if rng.random() < 0.5 else rng.choice([row[column] for row in FACTS[kind].values()])
    text = with_name(rng, fill(word(rng, split, questions), value), name)
    plan: Plan = replies.verdict(name, attribute, true=value == right)
    return Turn(typed(rng, text, split), plan, (name,), attribute)


def sets(rng: random.Random, split: TalkSplit) -> Turn:
    """All things with a value, or the first few of them."""
    names, phrase = draw_set(rng)
    if len(names) > _MAX_SET or rng.random() < 0.2:
        names = first_few(rng, names)
        text = word(rng, split, CHOICES["some_words"]).format(n=rng.choice(COUNTS[len(names)]), s=phrase)
    else:
        text = word(rng, split, CHOICES["set_words"]).format(s=phrase)
    return Turn(typed(rng, text, split), replies.set_of(names), tuple(names))


def next_one(rng: random.Random, split: TalkSplit) -> Turn:
    kind = rng.choice(("elements", "elements", "planets"))
    rows = list(FACTS[kind])
    at = rng.randrange(len(rows) - 1)
    text = word(rng, split, CHOICES["next"]).format(a=rows[at], k=kind.removesuffix("s"))
    plan = [Say("next", {"one": rows[at], "other": rows[at + 1]}, "")]
    return Turn(typed(rng, text, split), plan, (rows[at + 1],))
