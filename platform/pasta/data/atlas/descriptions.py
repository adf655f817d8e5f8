"""Task families that describe several things, each for itself: portraits, sheets, postcards, guides."""

import random
from typing import ClassVar

from pasta.data.atlas.facts import FACTS, KINDS
from pasta.data.atlas.family import Family, Params, join_names, read_names, weighted_choice
from pasta.data.atlas.plan import Node, Part, Plan, Say, describe, intro, lead, sheet
from pasta.data.atlas.sentences import GUIDE, STYLES, fact_fields

_KIND_WEIGHTS = {
    "countries": 5.0,
    "elements": 4.0,
    "planets": 1.0,
    "animals": 3.0,
    "instruments": 2.0,
    "scientists": 2.5,
    "books": 2.5,
    "rivers": 2.0,
}
_SIZES = {3: 1.0, 4: 2.5, 5: 4.0, 6: 5.0, 7: 3.5}
_LONG_SIZES = {3: 2.0, 4: 3.0, 5: 4.0, 6: 4.0, 7: 1.5}


def draw_kind(rng: random.Random, kinds: tuple[str, ...]) -> str:
    return rng.choices(kinds, [_KIND_WEIGHTS[kind] for kind in kinds])[0]


def draw_names(rng: random.Random, kind: str, sizes: dict[int, float]) -> list[str]:
    names = list(FACTS[kind])
    return rng.sample(names, min(weighted_choice(rng, sizes), len(names)))


def describe_all(names: list[str], style: str, layout: str) -> list[Node]:
    return [Part(name, describe(name, style, lead(layout, index))) for index, name in enumerate(names)]


class Listing(Family):
    """Families whose only parameter is a list of names."""

    independent = True
    kinds: ClassVar[tuple[str, ...]] = KINDS
    sizes: ClassVar[dict[int, float]] = _SIZES

    def draw(self, rng: random.Random) -> Params:
        return {"names": draw_names(rng, draw_kind(rng, self.kinds), self.sizes)}

    def slots(self, params: Params) -> dict[str, str]:
        return {"list": join_names(params["names"])}

    def unslot(self, slots: dict[str, str]) -> Params:
        return {"names": read_names(slots["list"])}

    def key(self, params: Params) -> list[str]:
        return sorted(params["names"])


class Profiles(Listing):
    name = "profiles"
    weight = 12.0
    wordings: ClassVar[tuple[str, ...]] = (
        "Tell me about {list}.",
        "Write a short portrait of each: {list}.",
        "What should I know about {list}?",
    )

    def plan(self, params: Params, layout: str) -> Plan:
        return [intro("intro.facts", layout), *describe_all(params["names"], "profile", layout)]


class Mixed(Profiles):
    name = "mixed"
    weight = 9.0
    wordings = ("Tell me a little about {list}.", "Here is an odd mixture: {list}. Say something about each.")

    def draw(self, rng: random.Random) -> Params:
        names: list[str] = []
        size = weighted_choice(rng, self.sizes)
        while len(names) < size:
            name = rng.choice(list(FACTS[draw_kind(rng, KINDS)]))
            if name not in names:
                names.append(name)
        return {"names": names}


class Sheets(Listing):
    name = "sheets"
    weight = 8.0
    wordings = ("Make fact sheets for {list}.", "I need a fact sheet on each of these: {list}.")
    laid_out = False

    def plan(self, params: Params, layout: str) -> Plan:
        parts = [Part(name, sheet(name)) for name in params["names"]]
        return [Say("intro.facts", {}, ""), *parts]


class Child(Listing):
    name = "child"
    weight = 6.0
    wordings = ("Explain {list} to a child.", "My little son asks about {list}. What shall I tell him?")
    kinds = tuple(STYLES["child"])
    sizes = _LONG_SIZES

    def plan(self, params: Params, layout: str) -> Plan:
        return [Say("intro.child", {}, ""), *describe_all(params["names"], "child", layout)]


class Selves(Listing):
    name = "selves"
    weight = 6.5
    wordings = (
        "Let each of these introduce itself: {list}.",
        "Write what {list} would say about themselves.",
    )
    kinds = tuple(STYLES["self"])
    sizes = _LONG_SIZES

    def plan(self, params: Params, layout: str) -> Plan:
        return [Say("intro.self", {}, ""), *describe_all(params["names"], "self", layout)]


class Postcards(Listing):
    name = "postcards"
    weight = 4.5
    wordings = ("Write postcards from {list}.", "I travel through {list}. Write a postcard from each.")
    kinds = ("countries",)
    sizes: ClassVar[dict[int, float]] = {2: 1.0, 3: 2.0, 4: 4.0, 5: 3.0, 6: 1.0}
    laid_out = False

    def plan(self, params: Params, layout: str) -> Plan:
        wish = Say("wish", {})
        parts = [Part(name, (*describe(name, "postcard", "\n\n"), wish)) for name in params["names"]]
        return [Say("intro.cards", {}, ""), *parts]


class Guides(Listing):
    name = "guides"
    weight = 5.0
    wordings = ("Write a travel guide to {list}.", "I want to visit {list}. Write a guide for me.")
    kinds = ("countries",)
    sizes: ClassVar[dict[int, float]] = {1: 1.0, 2: 3.0, 3: 4.0}
    laid_out = False

    def plan(self, params: Params, layout: str) -> Plan:
        parts = []
        for name in params["names"]:
            head = Say("countries.guide.head", {"name": name}, "\n\n", name)
            sections = []
            for topic, templates in GUIDE.items():
                says = []
                for index in range(len(templates)):
                    form = f"countries.guide.{topic}.{index}"
                    says.append(Say(form, fact_fields(form, name) or {}, " " if index else "\n- ", name))
                sections.append(Part(topic, tuple(says)))
            parts.append(Part(name, (head, *sections)))
        return [Say("intro.guide", {}, ""), *parts]


class Planets(Family):
    name = "planets"
    independent = True
    weight = 1.0
    wordings = ("Take me on a tour of the planets from {a} to {b}.", "Show me the planets from {a} to {b}.")

    def draw(self, rng: random.Random) -> Params:
        names = list(FACTS["planets"])
        first, last = rng.sample(range(len(names)), 2)
        while abs(first - last) < 2:
            first, last = rng.sample(range(len(names)), 2)
        return {"a": names[first], "b": names[last]}

    def slots(self, params: Params) -> dict[str, str]:
        return {"a": params["a"], "b": params["b"]}

    def unslot(self, slots: dict[str, str]) -> Params:
        if not {slots["a"], slots["b"]} <= FACTS["planets"].keys():
            raise ValueError("not planets")
        return dict(slots)

    def plan(self, params: Params, layout: str) -> Plan:
        names = list(FACTS["planets"])
        first, last = names.index(params["a"]), names.index(params["b"])
        tour = names[first : last + 1] if first < last else names[last : first + 1][::-1]
        return [Say("intro.tour", {}, ""), *describe_all(tour, "profile", layout)]


class ElementRange(Family):
    name = "element_range"
    independent = True
    weight = 3.5
    wordings = (
        "Describe the elements with the atomic numbers {a} to {b}.",
        "Which elements have the atomic numbers {a} to {b}? Describe each.",
    )

    def draw(self, rng: random.Random) -> Params:
        first = rng.randint(1, len(FACTS["elements"]) - 2)
        size = weighted_choice(rng, {3: 1, 4: 2, 5: 3, 6: 4, 7: 2})
        return {"a": first, "b": min(first + size - 1, len(FACTS["elements"]))}

    def slots(self, params: Params) -> dict[str, str]:
        return {"a": str(params["a"]), "b": str(params["b"])}

    def unslot(self, slots: dict[str, str]) -> Params:
        first, last = int(slots["a"]), int(slots["b"])
        if not 1 <= first < last <= len(FACTS["elements"]):
            raise ValueError("no such elements")
        return {"a": first, "b": last}

    def plan(self, params: Params, layout: str) -> Plan:
        names = list(FACTS["elements"])[params["a"] - 1 : params["b"]]
        return [intro("intro.facts", layout), *describe_all(names, "profile", layout)]
