"""The answers of a talk, as plans: what is said, in which parts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pasta.data.atlas.conclusions import COUNTED, Compare, count_line
from pasta.data.atlas.descriptions import describe_all
from pasta.data.atlas.facts import FACTS, KIND_OF, SIZES, spoken
from pasta.data.atlas.family import join
from pasta.data.atlas.plan import Await, Node, Part, Plan, Say, after, describe, intro, lead, line
from pasta.data.atlas.sentences import LINE

OUTSIDE: Plan = (Say("outside", {}, ""),)
#: The line that says first what a thing is.
FIRST_LINE = {kind: next(iter(lines)) for kind, lines in LINE.items()} | {"elements": "group"}
#: What can be ranked: kind, what decides, how the answer calls the highest and the lowest.
RANKS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "planets": (("number", "farthest from the Sun", "closest to the Sun"), ("size", "largest", "smallest")),
    "countries": (("size", "largest", "smallest"),),
    "rivers": (("size", "longest", "shortest"),),
    "elements": (("number", "one with the highest atomic number", "one with the lowest atomic number"),),
    "animals": (("legs", "one with the most legs", "one with the fewest legs"),),
    "scientists": (("century", "latest", "earliest"),),
    "books": (("century", "newest", "oldest"),),
}
#: Two sizes closer than this count as equal: sources differ about borders and about where a river begins.
_CLOSE = 1.15
_LEGS = {"no legs": 0, "two legs": 2, "four legs": 4, "six legs": 6}


def portrait(name: str, count: int | None = None) -> Plan:
    """A portrait of one thing, or its first ``count`` sentences."""
    return describe(name, "profile", "")[:count]


def portraits(names: Sequence[str], layout: str, count: int | None = None) -> list[Node]:
    """A portrait of each of several things, in parts, or its first ``count`` sentences."""
    parts = describe_all(list(names), "profile", layout)
    if count is not None:
        parts = [Part(part.topic, part.items[:count]) for part in parts if isinstance(part, Part)]
    return [intro("intro.facts", layout), *parts]


def lines(asked: Sequence[tuple[str, str]]) -> Plan:
    """One fact about each of several things: too short to be worth parts."""
    says = [line(name, attribute, lead("bullets", index)) for index, (name, attribute) in enumerate(asked)]
    return [intro("intro.answers", "bullets"), *says]


def compared(names: Sequence[str]) -> Plan:
    """Aspect by aspect, then what they share: the answer of the family ``compare``."""
    return Compare().plan({"names": list(names)}, "bullets")


def described_then(names: Sequence[str], end: Sequence[Say]) -> Plan:
    """Portraits in parts, then sentences that read them."""
    first, *rest = end
    return [
        *portraits(names, "bullets"),
        Await(),
        Say(first.form, first.fields, after("bullets"), first.subject),
        *(Say(say.form, say.fields, " ", say.subject) for say in rest),
    ]


def ranked(names: Sequence[str], column: str, *, highest: bool, what: str) -> Say | None:
    """Which is the largest, oldest ... of several things; None if two are too close to tell."""
    kind = KIND_OF[names[0]]
    values = {name: SIZES[name] if column == "size" else _number(FACTS[kind][name][column]) for name in names}
    order = sorted(names, key=lambda name: values[name], reverse=highest)
    first, second = values[order[0]], values[order[1]]
    if first == second or (column == "size" and max(first, second) < _CLOSE * min(first, second)):
        return None
    return Say("rank", {"name": spoken(order[0]), "what": what}, "")


#: The sentence that states what a rank goes by, where a kind's own lines have it.
_RANK_LINES = {
    "planets": {"number": "place"}, "elements": {"number": "number"}, "animals": {"legs": "class"},
    "scientists": {"century": "birth"}, "books": {"century": "time"},
}  # fmt: skip
_PLACE_BY_SIZE = {
    name: place
    for kind in ("countries", "rivers", "planets")
    for place, name in enumerate(sorted(FACTS[kind], key=lambda name: -SIZES[name]), start=1)
}


def measures(names: Sequence[str], column: str, *, highest: bool) -> list[tuple[Say, ...]]:
    """A line for each thing: what a rank goes by, then the best of the things up to here.

    A small model cannot compare what it has not said, and cannot name the best of several at once: here each line takes
    one number of two, and the answer's end copies a name. Of sizes a line states the place among all things of the
    kind, from the largest: one number that is easy to compare.
    """
    kind = KIND_OF[names[0]]
    if column == "size":
        numbers = [_PLACE_BY_SIZE[name] for name in names]
        says = [
            Say(f"size.{kind}", {"name": spoken(name), "n": str(place)})
            for name, place in zip(names, numbers, strict=True)
        ]
    else:
        numbers = [_number(FACTS[kind][name][column]) for name in names]
        says = [line(name, _RANK_LINES[kind][column]) for name in names]
    best = best_so_far(numbers, names, highest=highest != (column == "size"))
    return list(zip(says, best, strict=True))


#: Up to all planets.
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def best_so_far(numbers: Sequence[int], names: Sequence[str] | None = None, *, highest: bool) -> list[Say]:
    """For each number the highest or lowest of those up to it, and whose it is; the first that has it, if several do.

    The count makes each sentence another one, though the best one stays.
    """
    says = []
    at = 0
    for place, number in enumerate(numbers):
        is_better = number > numbers[at] if highest else number < numbers[at]
        at = place if is_better else at
        fields = {"count": _COUNTED[place], "n": str(numbers[at])}
        form = "highest" if highest else "lowest"
        if names is None:
            says.append(Say(f"{form}.number", fields))
        else:
            says.append(Say(form, fields | {"name": names[at]}))
    return says


def then(lines: Sequence[Sequence[Say]], *end: Say, opening: Say | None = None) -> Plan:
    """A list of lines, each of one statement or more, then what follows from them."""
    listed = [opening or intro("intro.answers", "bullets")]
    for index, says in enumerate(lines):
        listed += _led(lead("bullets", index), says)
    return [*listed, *_led(after("bullets"), end)]


def _led(before: str, says: Sequence[Say]) -> list[Say]:
    return [replace(says[0], before=before), *says[1:]]


@dataclass(frozen=True)
class Wanted:
    """What one of several things has to have, or must not have: a value of a column of facts."""

    column: str
    value: str
    negated: bool

    def fits(self, name: str) -> bool:
        return (FACTS[KIND_OF[name]][name][self.column] == self.value) != self.negated


def picked(names: Sequence[str], attribute: str, wanted: Wanted) -> Plan:
    """First what the prompt wants. Then a line for each thing: a fact, and its value before its name. At the end the
    value and the name of the one thing that fits.

    A small model learns to find the name after a value sooner than the name before it, and sooner than to say whether
    two values are equal (docs/notes/training.md, "Choices that copy").
    """
    values = {name: FACTS[KIND_OF[name]][name][wanted.column] for name in names}
    noted = {name: {"value": values[name], "name": name} for name in names}
    lines = [(line(name, attribute), Say("note", noted[name])) for name in names]
    (chosen,) = filter(wanted.fits, names)
    return then(
        lines,
        Say("found", noted[chosen]),
        Say("choice", {"name": spoken(chosen)}),
        opening=Say("unwanted" if wanted.negated else "wanted", {"value": wanted.value}, ""),
    )


def _number(value: str) -> int:
    return _LEGS[value] if value in _LEGS else int(value)


def counted(rng: random.Random, names: Sequence[str]) -> tuple[str, Say]:
    """What is counted, as a prompt says it, and the line that counts."""
    kind = KIND_OF[names[0]]
    column, phrase = COUNTED[kind]
    value = FACTS[kind][rng.choice(list(names))][column]
    return phrase.format(value), count_line(list(names), value, "")


def verdict(name: str, attribute: str, *, true: bool) -> Plan:
    """A yes or no, after the fact that it follows from."""
    return [line(name, attribute), Say("yes" if true else "no", {})]


def set_of(names: Sequence[str]) -> Plan:
    return [Say("they", {"names": join(list(names))}, "")]


def in_order(numbers: Sequence[int]) -> Plan:
    return [Say("they", {"names": join([str(number) for number in sorted(numbers)])}, "")]
