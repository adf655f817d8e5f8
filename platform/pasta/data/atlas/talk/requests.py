"""Single requests, as people make them: each draws a prompt of a split and the plan of its answer."""

import random
from collections.abc import Callable, Sequence

from pasta.data.atlas.conclusions import COUNTED, SHARED, shared_line
from pasta.data.atlas.facts import FACTS, KIND_OF, KINDS, WITH_ARTICLE, spoken
from pasta.data.atlas.families import FAMILIES
from pasta.data.atlas.family import join, weighted_choice
from pasta.data.atlas.plan import Plan, Say, after, line
from pasta.data.atlas.talk import replies
from pasta.data.atlas.talk.draw import ASKS, QUESTIONS, Turn, draw_list, draw_name, is_free, word
from pasta.data.atlas.talk.people import (
    TalkSplit,
    fill,
    listed,
    misspelt,
    noisy,
    plural,
    spell,
    split_of_names,
    typed,
    typo,
)
from pasta.data.atlas.tasks import plan_of, sample_task
from pasta.data.atlas.words import read_words

CHOICES, OUTSIDE = map(read_words, ("choices", "outside"))
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_COUNTS = {2: ("two", "2"), 3: ("three", "3"), 4: ("four", "4")}
#: Names in a set that is asked for as a whole.
_MAX_SET = 14


def about(rng: random.Random, split: TalkSplit) -> Turn:
    name = draw_name(rng)
    options = ASKS["about_asked"] if rng.random() < 0.4 else ASKS["about"]
    if KIND_OF[name] == "scientists" and rng.random() < 0.6:
        options = ASKS["who"]
    text = word(rng, split, options).format(x=spell(rng, name))
    return Turn(typed(rng, text, split), replies.portrait(name), (name,))


def few(rng: random.Random, split: TalkSplit) -> Turn:
    name = draw_name(rng)
    count = rng.choice((2, 3))
    text = word(rng, split, ASKS["few"]).format(x=spell(rng, name), n=rng.choice(_COUNTS[count]))
    return Turn(typed(rng, text, split), replies.portrait(name, count), (name,))


def each(rng: random.Random, split: TalkSplit) -> Turn:
    if rng.random() < 0.25:
        names: list[str] = []
        size = weighted_choice(rng, {2: 2, 3: 3, 4: 3, 5: 2, 6: 1})
        while len(names) < size:
            names = list(dict.fromkeys([*names, draw_name(rng)]))
    else:
        names = draw_list(rng, split, {2: 5, 3: 6, 4: 5, 5: 4, 6: 1.5, 7: 0.5, 8: 0.3})
    if rng.random() < 0.04:  # the planets, by a word for all of them
        names = list(FACTS["planets"])
        text = word(rng, split, ASKS["each"]).format(list=rng.choice(CHOICES["all_planets"]))
        return Turn(typed(rng, text, split), replies.portraits(names, "bullets"), tuple(names))
    asked = rng.random() < 0.25
    given = list(names)
    if rng.random() < 0.03:  # named twice, described once
        given.append(rng.choice(names))
    text = word(rng, split, ASKS["each_asked"] if asked else ASKS["each"]).format(list=listed(rng, given))
    layout = "bullets"
    if not asked and rng.random() < 0.3:
        layout = rng.choice(list(ASKS["layout_words"]))
        text += rng.choice(ASKS["layout_words"][layout])
    plan = list(replies.portraits(names, layout))
    return Turn(typed(rng, text, split), plan, tuple(names))


def each_known(rng: random.Random, split: TalkSplit) -> Turn:
    """A list with one thing that the atlas does not know: the others are described."""
    names = draw_list(rng, split, {2: 2, 3: 3, 4: 2})
    stranger = rng.choice(OUTSIDE["unknown"][KIND_OF[names[0]]])
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


def fact(rng: random.Random, split: TalkSplit) -> Turn:
    """A question about one fact."""
    name = draw_name(rng)
    kind = KIND_OF[name]
    attribute = rng.choice(list(QUESTIONS["forward"][kind]))
    if rng.random() < 0.35:
        template = word(rng, split, ASKS["of"]).replace("{noun}", rng.choice(ASKS["nouns"][kind][attribute]))
    else:
        template = word(rng, split, QUESTIONS["forward"][kind][attribute])
    text = template.format(x=spell(rng, name), xs=misspelt(rng, plural(name)), n=misspelt(rng, name))
    # "What are tigers known for": a plural where the wording has a singular is how people slip.
    return Turn(typed(rng, text, split), [line(name, attribute)], (name,), attribute)


def facts(rng: random.Random, split: TalkSplit) -> Turn:
    """Two facts about one thing, or one fact about several."""
    if rng.random() < 0.4:
        name = draw_name(rng)
        nouns = ASKS["nouns"][KIND_OF[name]]
        one, other = rng.sample(list(nouns), 2)
        text = word(rng, split, ASKS["of_both"]).format(
            x=spell(rng, name), noun=rng.choice(nouns[one]), other=rng.choice(nouns[other])
        )
        plan = [line(name, one), line(name, other, " ")]
        return Turn(typed(rng, text, split), plan, (name,), other)
    names = draw_list(rng, split, {2: 3, 3: 4, 4: 3, 5: 1})
    kind = KIND_OF[names[0]]
    attribute = rng.choice(list(QUESTIONS["forward"][kind]))
    if rng.random() < 0.5:
        noun = rng.choice(ASKS["nouns"][kind][attribute])
        text = word(rng, split, ASKS["of_several"]).format(noun=noun, list=listed(rng, names))
    else:
        text = word(rng, split, QUESTIONS["forward"][kind][attribute]).format(
            x=listed(rng, names), xs=join([plural(name) for name in names]), n=join(names)
        )
    several = replies.lines([(name, attribute) for name in names])
    return Turn(typed(rng, text, split), several, tuple(names), attribute)


def quiz(rng: random.Random, split: TalkSplit) -> Turn:
    """Several questions at once."""
    asked, texts = [], []
    for _ in range(weighted_choice(rng, {2: 4, 3: 3, 4: 1})):
        name = draw_name(rng)
        kind = KIND_OF[name]
        attribute = rng.choice(list(QUESTIONS["forward"][kind]))
        asked.append((name, attribute))
        text = word(rng, split, QUESTIONS["forward"][kind][attribute])
        texts.append(text.format(x=spell(rng, name), xs=misspelt(rng, plural(name)), n=misspelt(rng, name)))
    text = rng.choice(("? ", "? ", "? ", "?\n", ", and ", " and ")).join(texts)
    return Turn(typed(rng, text, split), replies.lines(asked), tuple(name for name, _ in asked))


def _backwards() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Name, attribute, value and questions of every value that belongs to one thing of its kind alone."""
    out = []
    for kind, rows in QUESTIONS["backward"].items():
        for column, attribute, questions in rows:
            values = [row.get(column) for row in FACTS[kind].values()]
            for name, row in FACTS[kind].items():
                if values.count(row[column]) == 1:
                    out.append((name, attribute, row[column], questions))
    return out


_BACKWARDS = _backwards()
#: Verbs that a work's phrase begins with, which a question about it brings itself.
_WORK_VERBS = ("finding ", "seeing ", "explaining ", "naming ", "showing that ")


def backward(rng: random.Random, split: TalkSplit) -> Turn:
    name, attribute, value, questions = rng.choice(_BACKWARDS)
    stripped = next((value.removeprefix(verb) for verb in _WORK_VERBS if value.startswith(verb)), value)
    ordinal = _ORDINALS[int(value) - 1] if value.isdigit() and int(value) < 9 else value
    text = word(rng, split, questions).format(v=value, w=stripped, o=ordinal)
    return Turn(typed(rng, text, split), [line(name, attribute)], (name,), attribute)


def yes_no(rng: random.Random, split: TalkSplit) -> Turn:
    kind = rng.choice(list(ASKS["yes_no"]))
    column, attribute, questions = rng.choice(ASKS["yes_no"][kind])
    name = rng.choice(list(FACTS[kind]))
    right = FACTS[kind][name][column]
    value = right if rng.random() < 0.5 else rng.choice([row[column] for row in FACTS[kind].values()])
    text = fill(word(rng, split, questions), value).format(x=spell(rng, name))
    plan: Plan = replies.verdict(name, attribute, true=value == right)
    return Turn(typed(rng, text, split), plan, (name,), attribute)


def sets(rng: random.Random, split: TalkSplit) -> Turn:
    """All things with a value, or the first few of them."""
    if rng.random() < 0.1:
        names, phrase = list(FACTS["planets"]), rng.choice(("planets", "planets of the solar system"))
    else:
        while True:
            kind = rng.choice(list(CHOICES["sets"]))
            column, *phrases = rng.choice(CHOICES["sets"][kind])
            value = rng.choice([row[column] for row in FACTS[kind].values()])
            names = [name for name, row in FACTS[kind].items() if row[column] == value]
            if len(names) > 1:
                break
        phrase = fill(rng.choice(phrases), value)
    if len(names) > _MAX_SET or rng.random() < 0.2:
        count = rng.choice([n for n in _COUNTS if n <= len(names)])
        text = word(rng, split, CHOICES["some_words"]).format(n=rng.choice(_COUNTS[count]), s=phrase)
        names = names[:count]
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


def compare(rng: random.Random, split: TalkSplit) -> Turn:
    while True:
        names = draw_list(rng, split, {2: 4, 3: 3, 4: 1}, tuple(SHARED))
        if is_free("compare", names, split):
            break
    if len(names) == 2 and rng.random() < 0.15:
        a, b = (spell(rng, name) for name in names)
        text = rng.choice(
            ("{} vs {}", "{} versus {}", "{} or {}: what is the difference", "{} vs. {}")
        ).format(a, b)
    else:
        text = word(rng, split, ASKS["compare"]).format(list=listed(rng, names))
    return Turn(typed(rng, text, split), replies.compared(names), tuple(names))


def then_compare(rng: random.Random, split: TalkSplit) -> Turn:
    names = draw_list(rng, split, {2: 2, 3: 4, 4: 4, 5: 3, 6: 1}, tuple(SHARED))
    text = word(rng, split, ASKS["then_compare"]).format(list=listed(rng, names))
    plan = replies.described_then(names, [shared_line(names, "")], "bullets")
    return Turn(typed(rng, text, split), plan, tuple(names))


def then_count(rng: random.Random, split: TalkSplit) -> Turn:
    names = draw_list(rng, split, {2: 1, 3: 4, 4: 3, 5: 2}, tuple(COUNTED))
    what, end = replies.counted(rng, names)
    text = word(rng, split, ASKS["each"]).format(list=listed(rng, names))
    text += word(rng, split, CHOICES["count_tails"]).format(w=what)
    return Turn(typed(rng, text, split), replies.described_then(names, [end], "bullets"), tuple(names))


def draw_rank(rng: random.Random, names: Sequence[str]) -> tuple[str, str, Say] | None:
    """How a prompt asks for the largest, oldest ... of some things, the column that decides, and the answer; None if
    nobody can tell."""
    column, high, low = rng.choice(replies.RANKS[KIND_OF[names[0]]])
    highest = rng.random() < 0.6
    what = high if highest else low
    end = replies.ranked(names, column, highest=highest, what=what)
    return (rng.choice(CHOICES["rank_words"][what]), column, end) if end else None


def rank(rng: random.Random, split: TalkSplit) -> Turn:
    """Which is the largest of several things, with or without a portrait of each first."""
    while True:
        whole = rng.random() < 0.15
        names = (
            list(FACTS["planets"])
            if whole
            else draw_list(rng, split, {2: 4, 3: 4, 4: 3, 5: 1}, tuple(replies.RANKS))
        )
        if (drawn := draw_rank(rng, names)) is not None:
            break
    asked, column, end = drawn
    if whole:
        text = rng.choice(CHOICES["rank_of_all"]).format(r=asked)
        return Turn(typed(rng, text, split), [end], tuple(names))
    texts = listed(rng, names)
    if rng.random() < 0.5:
        text = word(rng, split, ASKS["each"]).format(list=texts)
        text += word(rng, split, CHOICES["rank_tails"]).format(r=asked)
        sizes = replies.measures(names, column) if column == "size" else []  # the portraits tell the rest
        plan: Plan = replies.described_then(names, [*sizes, end], "bullets")
        return Turn(typed(rng, text, split), plan, tuple(names))
    options = CHOICES["rank_asked"] if rng.random() < 0.5 else CHOICES["rank_verbs"][end.fields["what"]]
    text = word(rng, split, options).format(r=asked, x=texts)
    return Turn(typed(rng, text, split), replies.then(replies.measures(names, column), end), tuple(names))


def which_of(rng: random.Random, split: TalkSplit) -> Turn:
    """Which one of several things has a value."""
    while True:
        names = draw_list(rng, split, {2: 3, 3: 5, 4: 2}, tuple(CHOICES["which_of"]))
        kind = KIND_OF[names[0]]
        column, attribute, questions = rng.choice(CHOICES["which_of"][kind])
        name = rng.choice(names)
        value = FACTS[kind][name][column]
        if sum(FACTS[kind][other][column] == value for other in names) == 1:
            break
    text = word(rng, split, questions).format(x=listed(rng, names), v=value)
    plan = replies.then([line(each, attribute) for each in names], Say("choice", {"name": spoken(name)}))
    return Turn(typed(rng, text, split), plan, (name,), attribute)


def spelling(rng: random.Random, split: TalkSplit) -> Turn:
    """Names misspelt: which are meant. Nearly every word of the answer depends on the letters of the prompt."""
    size = weighted_choice(rng, {1: 2, 2: 3, 3: 3, 4: 2, 5: 2, 6: 1})
    names: list[str] = []
    while len(names) < size:
        names = list(dict.fromkeys([*names, draw_name(rng)]))
    texts = [typo(rng, name) if rng.random() < 0.85 else name for name in names]
    text = word(rng, split, ASKS["spelling"]).format(list=join(texts))
    said = join([spoken(name) for name in names])
    return Turn(noisy(rng, text), [Say("spelling", {"names": said}, "")], tuple(names))


def small_talk(rng: random.Random, split: TalkSplit) -> Turn:
    form = rng.choice(("hello", "hello", "welcome", "bye", "self", "self"))
    text = word(rng, split, ASKS["small_talk"][form])
    plans: dict[str, Plan] = {
        "hello": [Say("hello", {}, ""), Say("topics", {})],
        "welcome": [Say("welcome", {}, "")],
        "bye": [Say("bye", {}, "")],
        "self": replies.OUTSIDE,
    }
    return Turn(typed(rng, text, split), plans[form])


def outside(rng: random.Random, split: TalkSplit) -> Turn:
    """Something that the atlas does not know."""
    chance = rng.random()
    if chance < 0.2:
        return Turn(typed(rng, word(rng, split, OUTSIDE["whole"]), split), replies.OUTSIDE)
    if chance < 0.4:
        text = word(rng, split, OUTSIDE["requests"]).format(t=word(rng, split, OUTSIDE["topics"]))
        return Turn(typed(rng, text, split), replies.OUTSIDE)
    kind = rng.choice(KINDS)
    if chance < 0.55:  # a known thing, and something that nobody wrote down about it
        noun = word(rng, split, OUTSIDE["no_facts"][kind])
        text = (
            word(rng, split, ASKS["of"]).replace("{noun}", noun).format(x=spell(rng, draw_name(rng, (kind,))))
        )
        return Turn(typed(rng, text, split), replies.OUTSIDE)
    name = word(rng, split, OUTSIDE["unknown"][kind])
    article = rng.choice(("", "the ")) if kind in WITH_ARTICLE else ""
    attribute = rng.choice(list(QUESTIONS["forward"][kind]))
    if chance < 0.75:
        text = word(rng, split, QUESTIONS["forward"][kind][attribute])
    elif chance < 0.8:
        noun = rng.choice(ASKS["nouns"][kind][attribute])
        text = word(rng, split, ASKS["of"]).replace("{noun}", noun)
    else:
        who = kind == "scientists" and rng.random() < 0.5
        text = word(rng, split, ASKS["who"] if who else rng.choice((ASKS["about"], ASKS["about_asked"])))
    text = text.format(x=article + name, xs=plural(name), n=name)
    return Turn(typed(rng, text, split), replies.OUTSIDE)


def own_words(rng: random.Random, split: TalkSplit) -> Turn:
    """A task of the families, typed as people type: polite, in lower case, with a typo."""
    task = sample_task(rng, "train" if split == "train" else "heldout")
    text = task.prompt
    if rng.random() < 0.5 and "?" not in text:
        text = rng.choice(("Please ", "please ", "Hi! ", "Hello, ", "Hey, ")) + text[0].lower() + text[1:]
    if rng.random() < 0.3:
        text = text.lower()
    if rng.random() < 0.2:
        text = text.rstrip(".")
    return Turn(text, plan_of(task.spec))


Request = Callable[[random.Random, TalkSplit], Turn]
#: Requests with their share of talks (relative).
REQUESTS_BY_NAME: dict[str, tuple[float, Request]] = {
    "about": (9, about), "few": (1.5, few), "each": (8, each), "each_known": (1, each_known), "brief": (2.5, brief),
    "styled": (4, other_family), "fact": (16, fact), "facts": (5, facts), "quiz": (2.5, quiz),
    "backward": (10, backward), "yes_no": (5, yes_no), "sets": (3, sets), "next_one": (1, next_one),
    "compare": (5, compare), "then_compare": (3, then_compare), "then_count": (2, then_count), "rank": (12, rank),
    "which_of": (9, which_of), "spelling": (16, spelling), "small_talk": (2, small_talk), "outside": (10, outside),
    "own_words": (2.5, own_words),
}  # fmt: skip
