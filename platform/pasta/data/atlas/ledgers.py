"""Stories of a running total: each step's result is the next step's start."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.family import Params, weighted_choice
from pasta.data.atlas.plan import Say
from pasta.data.atlas.steps import PEOPLE, STEP_COUNTS, Steps, match_step, running_totals, signed_changes

GOODS = (
    "bread", "apples", "cheese", "honey", "eggs", "tea", "soap", "flowers", "rice", "paper", "salt", "milk",
)  # fmt: skip
STOPS = (
    "Oak Street", "Mill Lane", "Park Road", "the station", "the harbour", "the library", "the museum", "the market",
    "the school", "the zoo",
)  # fmt: skip
PLANTS = ("sunflower", "tomato", "vine", "rose", "bean", "fern")
MONTHS = ("March", "April", "May", "June", "July", "August", "September", "October")


class _Ledger(Steps):
    """A running total: a start, and steps that add or take away. Subclasses name things and word them."""

    low: ClassVar[int] = 2
    high: ClassVar[int] = 80
    top: ClassVar[int] = 9
    starts: ClassVar[tuple[int, int]] = (12, 60)
    #: A field of every statement of the story, if there is one, and what it may be.
    shared: ClassVar[str] = ""
    of: ClassVar[tuple[str, ...]] = ()

    def things(self, rng: random.Random, count: int) -> list[str]:
        raise NotImplementedError

    def draw(self, rng: random.Random) -> Params:
        extra = {self.shared: rng.choice(self.of)} if self.shared else {}
        count = weighted_choice(rng, STEP_COUNTS)
        start = rng.randint(*self.starts)
        changes = signed_changes(rng, start, count, self.low, self.high, self.top)
        return {
            **extra,
            "start": start,
            "steps": [list(pair) for pair in zip(self.things(rng, count), changes, strict=True)],
        }

    def step_slot(self, thing: str, change: int) -> str:
        raise NotImplementedError

    def read_step(self, text: str) -> tuple[str, int]:
        raise NotImplementedError

    def slots(self, params: Params) -> dict[str, str]:
        return {
            **self.extra(params),
            "start": str(params["start"]),
            "steps": ", then ".join(self.step_slot(thing, change) for thing, change in params["steps"]),
        }

    def unslot(self, slots: dict[str, str]) -> Params:
        steps = [list(self.read_step(text)) for text in slots["steps"].split(", then ")]
        return {**self.extra(slots), "start": int(slots["start"]), "steps": steps}

    def event(self, params: Params, thing: str, before: int, change: int) -> Say:
        raise NotImplementedError

    def extra(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The field that every statement of the story shares, from parameters or slots."""
        return {self.shared: given[self.shared]} if self.shared else {}

    def first(self, params: Params) -> Say:
        return Say(f"{self.name}.start", {**self.extra(params), "a": str(params["start"])})

    def steps(self, params: Params) -> list[list[Say]]:
        out = []
        totals = running_totals(params["start"], [change for _, change in params["steps"]])
        for (thing, change), (a, d, b) in zip(params["steps"], totals, strict=True):
            sign = "plus" if change > 0 else "minus"
            total = Say(f"{self.name}.{sign}", {**self.extra(params), "a": str(a), "d": str(d), "b": str(b)})
            out.append([self.event(params, thing, a, change), total])
        return out

    def last(self, params: Params) -> Say:
        total = params["start"] + sum(change for _, change in params["steps"])
        return Say(f"{self.name}.end", {**self.extra(params), "a": str(total)})


class Shop(_Ledger):
    name = "shop"
    shared, of = "who", PEOPLE
    weight = 5.0
    wordings = (
        "{who} goes to the market with {start} coins: {steps}. Tell the story.",
        "How many coins has {who} left? At first there are {start}: {steps}.",
    )

    def things(self, rng: random.Random, count: int) -> list[str]:
        return rng.sample(GOODS, count)

    def step_slot(self, thing: str, change: int) -> str:
        return f"{'sell' if change > 0 else 'buy'} {thing} for {abs(change)}"

    def read_step(self, text: str) -> tuple[str, int]:
        match = match_step(r"(sell|buy) (\w+) for (\d+)", text)
        return match[2], int(match[3]) * (1 if match[1] == "sell" else -1)

    def event(self, params: Params, thing: str, before: int, change: int) -> Say:
        form = "shop.sell" if change > 0 else "shop.buy"
        return Say(form, {"who": params["who"], "item": thing, "d": str(abs(change))})


class Bus(_Ledger):
    name = "bus"
    weight = 4.0
    wordings = (
        "A bus leaves with {start} people: {steps}. Follow the bus.",
        "Count the people on a bus that leaves with {start}: {steps}.",
    )

    def things(self, rng: random.Random, count: int) -> list[str]:
        return rng.sample(STOPS, count)

    def step_slot(self, thing: str, change: int) -> str:
        return f"{abs(change)} {'on' if change > 0 else 'off'} at {thing}"

    def read_step(self, text: str) -> tuple[str, int]:
        match = match_step(r"(\d+) (on|off) at (.+)", text)
        return match[3], int(match[1]) * (1 if match[2] == "on" else -1)

    def event(self, params: Params, thing: str, before: int, change: int) -> Say:
        return Say("bus.on" if change > 0 else "bus.off", {"stop": thing, "d": str(abs(change))})


class Plant(_Ledger):
    name = "plant"
    shared, of = "plant", PLANTS
    weight = 4.0
    wordings = (
        "A {plant} is {start} centimetres tall: {steps}. How tall does it get?",
        "Tell the life of a {plant} that is {start} centimetres tall: {steps}.",
    )

    def things(self, rng: random.Random, count: int) -> list[str]:
        first = rng.randrange(len(MONTHS) - count + 1)
        return list(MONTHS[first : first + count])

    def step_slot(self, thing: str, change: int) -> str:
        return f"{abs(change)} {'more' if change > 0 else 'less'} in {thing}"

    def read_step(self, text: str) -> tuple[str, int]:
        match = match_step(r"(\d+) (more|less) in (\w+)", text)
        return match[3], int(match[1]) * (1 if match[2] == "more" else -1)

    def event(self, params: Params, thing: str, before: int, change: int) -> Say:
        return Say("plant.grow" if change > 0 else "plant.cut", {"month": thing, "d": str(abs(change))})


_CITIES = {row["capital"]: row["name"] for row in FACTS["countries"].values()}


class Trip(_Ledger):
    """A train journey told by its days: the day of each arrival follows from the stay before."""

    name = "trip"
    weight = 5.0
    low, top = -100, 9
    starts = (1, 3)
    wordings = (
        "A trip begins on day {start}: {steps}. Tell the trip.",
        "Plan a trip from day {start}: {steps}. When are we home?",
    )

    def things(self, rng: random.Random, count: int) -> list[str]:
        return rng.sample(list(_CITIES), count)

    def draw(self, rng: random.Random) -> Params:
        params = super().draw(rng)
        params["steps"] = [[city, max(2, abs(change))] for city, change in params["steps"]]
        return params

    def step_slot(self, thing: str, change: int) -> str:
        return f"{change} days in {thing}"

    def read_step(self, text: str) -> tuple[str, int]:
        match = match_step(r"(\d+) days in (.+)", text)
        if match[2] not in _CITIES:
            raise ValueError("no such city")
        return match[2], int(match[1])

    def event(self, params: Params, thing: str, before: int, change: int) -> Say:
        fields = {"a": str(before), "city": thing, "country": _CITIES[thing], "d": str(change)}
        return Say("trip.stay", fields)
