"""Task families whose parts are independent but whose last line, or a chapter's last line, reads them."""

import random
from collections.abc import Sequence

from pasta.data.atlas.descriptions import Listing, describe_all, draw_kind, draw_names
from pasta.data.atlas.facts import FACTS, KIND_OF, KINDS
from pasta.data.atlas.family import Family, Params, join_names, read_names, weighted_choice
from pasta.data.atlas.plan import Await, Node, Part, Plan, Say, after, intro, lead, line
from pasta.data.atlas.sentences import LINE

#: What can be counted: column, how the prompt and the answer say it.
COUNTED: dict[str, tuple[str, str]] = {
    "countries": ("continent", "lie in {}"),
    "rivers": ("continent", "flow through {}"),
    "animals": ("class", "belong to the class {}"),
    "instruments": ("family", "belong to the {} family"),
    "elements": ("state", "are {} at room temperature"),
}


def count_line(names: list[str], value: str, before: str) -> Say:
    """The conclusion of a count: how many of the things named before have the value."""
    kind = KIND_OF[names[0]]
    column, phrase = COUNTED[kind]
    hits = sum(FACTS[kind][name][column] == value for name in names)
    return Say("count", {"what": phrase.format(value), "k": str(hits), "n": str(len(names))}, before)


_VALUES = {
    phrase.format(row[column]): row[column]
    for kind, (column, phrase) in COUNTED.items()
    for row in FACTS[kind].values()
}


class Count(Family):
    """Profiles, then a count that reads them."""

    name = "count"
    independent = True
    weight = 5.0
    wordings = (
        "Tell me about {list}. How many of them {what}?",
        "Describe {list} and count those that {what}.",
    )

    def draw(self, rng: random.Random) -> Params:
        kind = draw_kind(rng, tuple(COUNTED))
        names = draw_names(rng, kind, {3: 1, 4: 3, 5: 4, 6: 3})
        return {"names": names, "value": FACTS[kind][rng.choice(names)][COUNTED[kind][0]]}

    def slots(self, params: Params) -> dict[str, str]:
        phrase = COUNTED[KIND_OF[params["names"][0]]][1]
        return {"list": join_names(params["names"]), "what": phrase.format(params["value"])}

    def unslot(self, slots: dict[str, str]) -> Params:
        names = read_names(slots["list"])
        if any(KIND_OF[name] not in COUNTED for name in names):
            raise ValueError("nothing to count")
        return {"names": names, "value": _VALUES[slots["what"]]}

    def key(self, params: Params) -> list[str]:
        return [params["value"], *sorted(params["names"])]

    def plan(self, params: Params, layout: str) -> Plan:
        parts = describe_all(params["names"], "profile", layout)
        end = count_line(params["names"], params["value"], after(layout))
        return [intro("intro.facts", layout), *parts, Await(), end]


#: What is compared in a conclusion: column, its name.
SHARED: dict[str, tuple[str, str]] = {
    "countries": ("continent", "continent"),
    "elements": ("state", "state"),
    "planets": ("type", "type"),
    "animals": ("class", "class"),
    "instruments": ("family", "family"),
    "books": ("language", "language"),
    "scientists": ("country", "country"),
    "rivers": ("continent", "continent"),
}


def shared_line(names: Sequence[str], before: str) -> Say:
    """The conclusion of a comparison: whether they share what their kind is compared by."""
    column, label = SHARED[KIND_OF[names[0]]]
    values = {FACTS[KIND_OF[name]][name][column] for name in names}
    if len(values) == 1:
        return Say("same", {"attribute": label, "value": values.pop()}, before)
    return Say("different", {"attribute": label}, before)


class Compare(Family):
    """Several things, aspect by aspect; then whether they share one aspect, which reads the parts."""

    name = "compare"
    independent = True
    weight = 4.0
    wordings = ("Compare {list} point by point.", "How do {list} differ? Go point by point.")

    def draw(self, rng: random.Random) -> Params:
        kind = draw_kind(rng, tuple(SHARED))
        column = SHARED[kind][0]
        rows = FACTS[kind]
        size = weighted_choice(rng, {2: 1, 3: 4, 4: 4})
        names = rng.sample(list(rows), size)
        if rng.random() < 0.45:  # left to chance, few sets would share anything
            alike = [name for name in rows if rows[name][column] == rows[names[0]][column]]
            names = rng.sample(alike, min(size, len(alike))) if len(alike) > 1 else names
        return {"names": names}

    slots = Listing.slots
    unslot = Listing.unslot
    key = Listing.key

    def plan(self, params: Params, layout: str) -> Plan:
        names = params["names"]
        parts: list[Node] = []
        for index, attribute in enumerate(LINE[KIND_OF[names[0]]]):
            says = (
                line(name, attribute, " " if place else lead(layout, index))
                for place, name in enumerate(names)
            )
            parts.append(Part(attribute, tuple(says)))
        return [Say("intro.compare", {}, ""), *parts, Await(), shared_line(names, after(layout))]


_CHAPTER_WORDS = ("one", "two", "three")


class Encyclopedia(Family):
    """Chapters of entries: parts within parts; each chapter may end with a count of its own."""

    name = "encyclopedia"
    independent = True
    weight = 5.0
    laid_out = False
    wordings = ("Write a small encyclopedia. {chapters}", "Write a book with these chapters. {chapters}")
    closing_rate = 0.0

    def draw(self, rng: random.Random) -> Params:
        counted = rng.random() < 0.4
        kinds = list(COUNTED) if counted else list(KINDS)
        chapters = []
        num_chapters = weighted_choice(rng, {2: 4, 3: 1})
        for kind in rng.sample(kinds, num_chapters):
            names = draw_names(rng, kind, {2: 1} if num_chapters == 3 else {2: 3, 3: 4})
            value = FACTS[kind][rng.choice(names)][COUNTED[kind][0]] if counted else ""
            chapters.append([kind, names, value])
        return {"chapters": chapters}

    def slots(self, params: Params) -> dict[str, str]:
        texts = []
        for word, (kind, names, value) in zip(_CHAPTER_WORDS, params["chapters"], strict=False):
            count = f" Count those that {COUNTED[kind][1].format(value)}." if value else ""
            texts.append(f"Chapter {word}, {kind}: {join_names(names)}.{count}")
        return {"chapters": " ".join(texts)}

    def unslot(self, slots: dict[str, str]) -> Params:
        chapters = []
        for text in slots["chapters"].split("Chapter ")[1:]:
            head, _, rest = text.strip().partition(": ")
            kind = head.split(", ")[1]
            listed, _, counted = rest.rstrip(".").partition(". Count those that ")
            chapters.append([kind, read_names(listed), _VALUES[counted] if counted else ""])
        return {"chapters": chapters}

    def key(self, params: Params) -> list[str]:
        return sorted("|".join([kind, value, *sorted(names)]) for kind, names, value in params["chapters"])

    def plan(self, params: Params, layout: str) -> Plan:
        parts = []
        for kind, names, value in params["chapters"]:
            items: list[Node] = [Say("chapter", {"topic": kind}, "\n\n")]
            items += describe_all(names, "profile", "bullets")
            if value:
                items += [Await(), count_line(names, value, "\n")]
            parts.append(Part(kind, tuple(items)))
        return [Say("intro.book", {}, ""), *parts]
