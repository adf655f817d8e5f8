"""Requests to describe things, and those that are about names and tasks rather than facts."""

import random

from pasta.data.atlas.facts import FACTS, KIND_OF, spoken
from pasta.data.atlas.families import FAMILIES
from pasta.data.atlas.family import join, weighted_choice
from pasta.data.atlas.plan import Say, after
from pasta.data.atlas.talk import replies, topics
from pasta.data.atlas.talk.draw import (
    ASKS,
    CHOICES,
    COUNTS,
    Turn,
    draw_any,
    draw_list,
    draw_name,
    draw_some,
    is_free,
)
from pasta.data.atlas.talk.frames import typed
from pasta.data.atlas.talk.people import listed, spell
from pasta.data.atlas.talk.typos import noisy, typo
from pasta.data.atlas.talk.wordings import TalkSplit, sentence, split_of_names, word
from pasta.data.atlas.tasks import plan_of, sample_task
from pasta.data.atlas.words import read_words


def about(rng: random.Random, split: TalkSplit) -> Turn:
    name = draw_name(rng)
    person = KIND_OF[name] == "scientists"
    way = rng.random()
    if way < 0.25:
        text = topics.pronoun_portrait(rng, split, name)
    elif way < 0.4:
        text = rng.choice(ASKS["who_plainly" if person else "what_plainly"]).format(x=spell(rng, name))
    else:
        options = ASKS["about_asked"] if rng.random() < 0.4 else ASKS["about"]
        if person and rng.random() < 0.6:
            options = ASKS["who"]
        text = word(rng, split, options).format(x=spell(rng, name))
    return Turn(typed(rng, text, split), replies.portrait(name), (name,))


def few(rng: random.Random, split: TalkSplit) -> Turn:
    name = draw_name(rng)
    count = rng.choice((2, 3))
    text = word(rng, split, ASKS["few"]).format(x=spell(rng, name), n=rng.choice(COUNTS[count]))
    return Turn(typed(rng, text, split), replies.portrait(name, count), (name,))


def few_each(rng: random.Random, split: TalkSplit) -> Turn:
    """A line or two on each of several things: two sentences, which hold two facts at least."""
    names = draw_list(rng, split, {2: 3, 3: 4, 4: 4, 5: 2, 6: 1})
    text = word(rng, split, ASKS["few_each"]).format(list=listed(rng, names))
    return Turn(typed(rng, text, split), replies.portraits(names, "bullets", 2), tuple(names))


def each(rng: random.Random, split: TalkSplit) -> Turn:
    way = rng.random()
    if way < 0.08:  # by what they are called together
        if way < 0.04:
            names, called = list(FACTS["planets"]), rng.choice(CHOICES["all_planets"])
        else:
            names, called = draw_some(rng)
        text = word(rng, split, ASKS["each"]).format(list=called)
        return Turn(typed(rng, text, split), replies.portraits(names, "bullets"), tuple(names))
    if rng.random() < 0.25:
        names = draw_any(rng, weighted_choice(rng, {2: 2, 3: 3, 4: 3, 5: 2, 6: 1}))
    else:
        names = draw_list(rng, split, {2: 5, 3: 6, 4: 5, 5: 4, 6: 1.5, 7: 0.5, 8: 0.3})
    given = list(names)
    if rng.random() < 0.03:  # named twice, described once
        given.append(rng.choice(names))
    people = all(KIND_OF[name] == "scientists" for name in names)
    form = "who_each" if people and rng.random() < 0.6 else "each_asked" if rng.random() < 0.25 else "each"
    text = word(rng, split, ASKS[form]).format(list=listed(rng, given))
    layout = "bullets"
    if form == "each" and rng.random() < 0.3:
        layout = rng.choice(list(ASKS["layout_words"]))
        text += rng.choice(ASKS["layout_words"][layout])
    return Turn(typed(rng, text, split), replies.portraits(names, layout), tuple(names))


def each_known(rng: random.Random, split: TalkSplit) -> Turn:
    """A list with one thing that the atlas does not know: the others are described."""
    names = draw_list(rng, split, {2: 2, 3: 3, 4: 2})
    stranger = rng.choice(read_words("outside")["unknown"][KIND_OF[names[0]]])
    given = [listed(rng, [name]) for name in names]
    given.insert(rng.randrange(len(given) + 1), stranger)
    text = word(rng, split, ASKS["each"]).format(list=join(given))
    plan = [*replies.portraits(names, "bullets"), Say("outside", {}, after("bullets"))]
    return Turn(typed(rng, text, split), plan, tuple(names))


def brief(rng: random.Random, split: TalkSplit) -> Turn:
    names = draw_list(rng, split, {2: 1, 3: 3, 4: 3, 5: 3, 6: 2})
    text = word(rng, split, ASKS["brief"]).format(list=listed(rng, names))
    asked = [(name, replies.FIRST_LINE[KIND_OF[name]]) for name in names]
    return Turn(typed(rng, text, split), replies.lines(asked), tuple(names))


def other_family(rng: random.Random, split: TalkSplit) -> Turn:
    """The other families, in people's words."""
    style = rng.choice(list(ASKS["styled"]))
    family = FAMILIES[style]
    while True:
        names = family.draw(rng)["names"][: weighted_choice(rng, {1: 3, 2: 2, 3: 2, 4: 1})]
        if (len(names) < 3 or split_of_names(names) == split) and is_free(style, names, split):
            break
    text = word(rng, split, ASKS["styled"][style]).format(list=listed(rng, names))
    return Turn(typed(rng, text, split), family.plan({"names": names}, "bullets"), tuple(names))


def spelling(rng: random.Random, split: TalkSplit) -> Turn:
    """Names misspelt: which are meant. Nearly every word of the answer depends on the letters of the prompt."""
    names = draw_any(rng, weighted_choice(rng, {1: 2, 2: 3, 3: 3, 4: 2, 5: 2, 6: 1}))
    texts = [typo(rng, name) if rng.random() < 0.85 else name for name in names]
    text = word(rng, split, ASKS["spelling"]).format(list=join(texts))
    said = join([spoken(name) for name in names])
    return Turn(noisy(rng, text), [Say("spelling", {"names": said}, "")], tuple(names))


def own_words(rng: random.Random, split: TalkSplit) -> Turn:
    """A task of the families, typed as people type: polite, in lower case, with a typo."""
    task = sample_task(rng, "train" if split == "train" else "heldout")
    text = task.prompt
    if rng.random() < 0.5 and "?" not in text:
        text = sentence(rng, ("[please|Please] ", "[Hi!|Hello,|Hey,] ")) + text[0].lower() + text[1:]
    if rng.random() < 0.3:
        text = text.lower()
    if rng.random() < 0.2:
        text = text.rstrip(".")
    return Turn(text, plan_of(task.spec))
