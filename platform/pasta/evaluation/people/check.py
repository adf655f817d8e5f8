"""Finds what is wrong with an answer to a turn."""

import re
from collections.abc import Iterator
from functools import cache

from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.evaluation.people.prompts import ExpectedTurn, Needed
from pasta.evaluation.people.text import (
    any_of,
    facts_of,
    has,
    has_name,
    is_fact,
    normalise,
    parts,
    place_of,
    said_about,
    sentences,
    simple_clauses,
    speaks_of,
    value_of,
)

#: Sentences of fewer words may be repeated: a heading, "Yes."
_REPEATED_WORDS = 4
_REPEATED_RUN = 5
_SCOPE_SENTENCES = 3
_SCOPE_WORDS = 60
#: Kinds of things, or columns, one of which a sentence about what the model knows has to name.
_SCOPE_NAMED = 3
#: A sentence is about a name that stands within so many words of its start.
_BEGINNING = 4
_GREETINGS = ("hello", "hi", "hey", "welcome", "greetings", "good day", "good morning", "good afternoon")
_KIND_WORDS = {
    "countries": ("country", "countries", "nations"),
    "elements": ("element",),
    "planets": ("planet",),
    "animals": ("animal",),
    "instruments": ("instrument",),
    "scientists": ("scientist",),
    "books": ("book", "novel"),
    "rivers": ("river",),
}
#: An answer to a question about one fact states at most so many facts about the thing: it is no fact sheet.
_ANSWERING_FACTS = 3
#: Columns whose values may belong to other things: an ocean, the periodic table, a boy, light.
_SHARED = ("beside", "work", "also", "about")
_COMPARING = re.compile(
    r"\b(?:both|all|neither|while|whereas|but|unlike|than|share|same|differ|different|compared|contrast|however|only)\b"
)
_CONCLUDING = re.compile(r"(?:so|therefore|thus)\b")
_DENYING = re.compile(r"\b(?:not|never)\b|n't\b")
_LEADING_LIST = re.compile(r"^(?:of|among|between|out of|from)\b.*?,\s*(?=(?:the|it)\b)")


def faults(turn: ExpectedTurn, answer: str, finish_reason: str, num_threads: int) -> list[str]:
    """What is wrong with an answer, as a user sees it; empty for a right one.

    ``finish_reason`` is the engine's; ``num_threads`` counts the main thread too.
    """
    text = normalise(answer)
    if not text:
        return ["says nothing"]
    found = [*_form(turn, text, finish_reason, num_threads), *_content(turn, text)]
    return list(dict.fromkeys(found))


def _form(turn: ExpectedTurn, text: str, finish_reason: str, num_threads: int) -> Iterator[str]:
    if finish_reason != "stop":
        yield f"does not end by itself ({finish_reason})"
    if num_threads > turn.max_threads:
        yield f"{num_threads} threads, expected at most {turn.max_threads}"
    num_words = len(text.split())
    most = _SCOPE_WORDS if turn.scope or turn.greeting else turn.max_words
    if num_words > most:
        yield f"{num_words} words, expected at most {most}"
    seen = set()
    for part in parts(text, turn.things):
        words = re.sub(r"[^\w ]", "", part.text)
        if (part.things, words) in seen and len(words.split()) >= _REPEATED_WORDS:
            yield f"repeats {part.text!r}"
            break
        seen.add((part.things, words))
    if len(turn.things) <= 1 and (run := _repeated_run(text)):
        yield f"repeats {run!r}"


def _repeated_run(text: str) -> str | None:
    """The longest run of words that an answer about one thing may repeat."""
    words = re.findall(r"\w+", text)
    runs = [" ".join(words[at : at + _REPEATED_RUN]) for at in range(len(words) - _REPEATED_RUN + 1)]
    return next((run for at, run in enumerate(runs) if run in runs[:at]), None)


def _content(turn: ExpectedTurn, text: str) -> Iterator[str]:
    yield from (f"lacks {_shown(needed)}" for needed in turn.contains if not _found(text, needed))
    for name, wanted in turn.about.items():
        said = said_about(text, name, turn.things)
        yield from (f"lacks {_shown(needed)} of {name}" for needed in wanted if not _found(said, needed))
    yield from (f"says {unwanted!r}" for unwanted in turn.without if has(text, unwanted))
    if turn.facts:
        yield from _too_few_facts(turn, text)
    elif turn.contains and len(turn.things) == 1:
        told = _told(turn, turn.things[0], text)
        if told > _ANSWERING_FACTS:
            yield f"{told} facts about {turn.things[0]}, expected at most {_ANSWERING_FACTS}"
    by_attribute = sum(_side_by_side(turn, line) for line in text.split("\n"))
    if turn.compares and by_attribute < 2 and not any(_compares(turn, each) for each in sentences(text)):
        yield "does not compare"
    yield from _foreign_values(turn, text)
    for column in turn.only:
        yield from _wrong_values(turn, text, column)
    if turn.choice is not None and (chosen := _chosen(turn, text)) != turn.choice:
        yield f"chooses {chosen or 'none'}, expected {turn.choice}"
    if turn.greeting and not any(has(text, word) for word in _GREETINGS):
        yield "does not greet"
    if turn.scope:
        yield from _no_scope(turn, text)
    if turn.scope or turn.greeting:
        yield from (f"states a fact about {name} unasked" for name in _stated(text))
    else:
        yield from (f"speaks of {name} unasked" for name in _strangers(turn, text))


def _found(text: str, needed: Needed) -> bool:
    return any(has(text, each) for each in ((needed,) if isinstance(needed, str) else needed))


def _shown(needed: Needed) -> str:
    return repr(needed) if isinstance(needed, str) else f"one of {', '.join(needed)}"


def _too_few_facts(turn: ExpectedTurn, text: str) -> Iterator[str]:
    for name in turn.things:
        if not has_name(text, name) and len(turn.things) > 1:
            yield f"does not name {name}"
            continue
        told = _told(turn, name, text)
        if told < turn.facts:
            yield f"{told} facts about {name}, expected {turn.facts}"


def _told(turn: ExpectedTurn, name: str, text: str) -> int:
    """How many facts about a thing an answer states."""
    said = said_about(text, name, turn.things)
    return sum(has(said, value) for value in facts_of(name).values())


def _wrong_values(turn: ExpectedTurn, text: str, column: str) -> Iterator[str]:
    """Values of a column that belong to none of the things that this part of the answer is about."""
    for kind in dict.fromkeys(KIND_OF[name] for name in turn.things):
        for part in parts(text, turn.things):
            own = [name for name in part.things if KIND_OF[name] == kind]
            allowed = [value for name in own for value in (normalise(name), *facts_of(name).values())]
            for match in _values(kind, column).finditer(part.text) if own else ():
                if not any(_is_in(value, match[1]) for value in allowed):
                    yield f"says {match[1]!r} of {' and '.join(sorted(own))}"


def _foreign_values(turn: ExpectedTurn, text: str) -> Iterator[str]:
    """Values that only another kind of thing can have: a country with the symbol of an element."""
    for part in parts(text, turn.things):
        kinds = {KIND_OF[name] for name in part.things}
        allowed = [value for name in part.things for value in facts_of(name).values()]
        for kind in FACTS if kinds else ():
            if kind not in kinds:
                for match in _long_values(kind).finditer(part.text):
                    if not any(_is_in(value, match[1]) for value in allowed):
                        yield f"says {match[1]!r} of {' and '.join(sorted(part.things))}"


def _compares(turn: ExpectedTurn, sentence: str) -> bool:
    """Whether a sentence names two of the things or has a word of comparison, and states a fact of one."""
    is_comparing = sum(has_name(sentence, name) for name in turn.things) > 1 or _COMPARING.search(sentence)
    values = (value for name in turn.things for value in facts_of(name).values())
    return bool(is_comparing) and any(has(sentence, value) for value in values)


def _side_by_side(turn: ExpectedTurn, line: str) -> bool:
    """Whether a line says of two things the same attribute, in a sentence each: Italy's capital and Japan's.

    Two such lines are a comparison, attribute by attribute. Sheet after sheet, thing by thing, is none.
    """
    told = sentences(line)
    named = [[name for name in turn.things if speaks_of(sentence, name)] for sentence in told]
    if (
        len(told) < 2
        or any(len(names) != 1 for names in named)
        or len({names[0] for names in named}) < len(told)
    ):
        return False
    stated = (
        {column for column, value in facts_of(name).items() if has(sentence, value)}
        for sentence, (name,) in zip(told, named, strict=True)
    )
    return bool(set.intersection(*stated))


@cache
def _long_values(kind: str) -> re.Pattern[str]:
    """Facts of a kind that take several words and fit no other kind."""
    columns = [
        column for column in next(iter(FACTS[kind].values())) if is_fact(column) and column not in _SHARED
    ]
    values = {value_of(row[column]) for row in FACTS[kind].values() for column in columns}
    return re.compile(rf"(?<!\w)({any_of(value for value in values if ' ' in value)})(?!\w)")


def _is_in(value: str, said: str) -> bool:
    return has(value, said) or has(value, said.removesuffix("s"))


@cache
def _values(kind: str, column: str) -> re.Pattern[str]:
    """All values of a column, as they stand in a text; of names a scientist's surname too."""
    values = {value_of(row[column]) for row in FACTS[kind].values() if row.get(column)}
    if column == "name" and kind == "scientists":
        values |= {value.split()[-1] for value in values}
    return re.compile(rf"(?<!\w)({any_of(values)})(?:'?s|es)?(?!\w)")


def _chosen(turn: ExpectedTurn, text: str) -> str | None:
    """The thing that an answer picks: the only one named in a clause with a superlative that it does not deny, or in
    one that concludes ("So it is …"), else the first one named (a list that repeats the question, "Of A, B and C, …",
    is ignored).
    """
    picked = []
    for sentence in sentences(text):
        concludes = False
        for clause in simple_clauses(sentence):
            concludes = concludes or _CONCLUDING.match(clause) is not None
            named = [name for name in turn.things if has_name(clause, name)]
            if len(named) == 1 and (concludes or any(_affirms(clause, word) for word in turn.superlatives)):
                picked.append(named[0])
    if picked:
        return picked[0] if len(set(picked)) == 1 else " and ".join(dict.fromkeys(picked))
    rest = _LEADING_LIST.sub("", text)
    places = {name: place for name in turn.things if (place := place_of(rest, name)) is not None}
    return min(places, key=lambda name: places[name], default=None)


def _affirms(clause: str, superlative: str) -> bool:
    return has(clause, superlative) and not _DENYING.search(clause.replace(normalise(superlative), ""))


def _no_scope(turn: ExpectedTurn, text: str) -> Iterator[str]:
    if len(sentences(text)) > _SCOPE_SENTENCES:
        yield f"{len(sentences(text))} sentences, expected at most {_SCOPE_SENTENCES}"
    kinds = sum(any(has(text, word) for word in words) for words in _KIND_WORDS.values())
    columns = {column for name in turn.things for column in facts_of(name) if is_fact(column)}
    if max(kinds, sum(has(text, column) for column in columns)) < _SCOPE_NAMED:
        yield "does not say what the model knows"


def _stated(text: str) -> Iterator[str]:
    """Names of things that a sentence states a fact about; a list of examples states none."""
    for sentence in sentences(text):
        for name in KIND_OF:
            if has_name(sentence, name):
                values = [value for value in facts_of(name).values() if value not in _NAMES]
                if any(has(sentence, value) for value in values if not value.isdecimal() and len(value) > 2):
                    yield name


def _strangers(turn: ExpectedTurn, text: str) -> Iterator[str]:
    """Names at the start of sentences that are about none of the things, unless the things' facts hold those names."""
    known = "\n".join(value for name in turn.things for value in (name, *facts_of(name).values()))
    for sentence in sentences(text):
        if any(has_name(sentence, name) for name in turn.things):
            continue
        begun = " ".join(sentence.split()[:_BEGINNING])
        yield from (
            name for name in KIND_OF if speaks_of(begun, name) and not has_name(normalise(known), name)
        )


_NAMES = frozenset(normalise(name) for name in KIND_OF)
