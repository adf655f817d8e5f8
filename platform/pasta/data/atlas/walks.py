"""Chains of steps through a table, a circle, the alphabet; and games that pile up things."""

import random
from typing import ClassVar

from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.family import Params, join, split_words, weighted_choice
from pasta.data.atlas.plan import Say
from pasta.data.atlas.steps import PEOPLE, Steps, match_step, running_totals, signed_changes

PACKED = (
    "a hat", "a book", "a key", "a map", "a lamp", "a cup", "a rope", "a knife", "a coat", "a ball", "a comb", "a pen",
    "an apple", "a kite", "a flute", "a drum",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "pink")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class CountDown(Steps):
    name = "countdown"
    weight = 4.0
    wordings = (
        "Count down from {start} to {end} in steps of {d}.",
        "Go from {start} down to {end}, {d} at a time.",
    )

    def draw(self, rng: random.Random) -> Params:
        d, count = rng.randint(2, 9), weighted_choice(rng, {4: 1, 5: 2, 6: 3, 7: 2, 8: 1})
        end = rng.randint(0, 80 - d * count) if d * count < 80 else 0
        return {"start": end + d * count, "end": end, "d": d}

    def slots(self, params: Params) -> dict[str, str]:
        return {key: str(value) for key, value in params.items()}

    def unslot(self, slots: dict[str, str]) -> Params:
        params = {key: int(slots[key]) for key in ("start", "end", "d")}
        if (
            params["d"] < 1
            or params["start"] <= params["end"]
            or (params["start"] - params["end"]) % params["d"]
        ):
            raise ValueError("the steps do not end there")
        return params

    def first(self, params: Params) -> Say:
        return Say("count.start", {"a": str(params["start"])})

    def steps(self, params: Params) -> list[list[Say]]:
        d = params["d"]
        return [
            [
                Say("count.down", {"a": str(a), "d": str(d)}),
                Say("count.minus", {"a": str(a), "d": str(d), "b": str(a - d)}),
            ]
            for a in range(params["start"], params["end"], -d)
        ]

    def last(self, params: Params) -> Say:
        return Say("count.end", {"a": str(params["end"])})


_ELEMENTS = ("", *FACTS["elements"])


class Chain(Steps):
    """A walk through the periodic table by atomic number."""

    name = "chain"
    weight = 5.0
    wordings = (
        "Start at {start} and go {steps} in the periodic table.",
        "Which element do I reach from {start} when I go {steps}?",
    )

    def draw(self, rng: random.Random) -> Params:
        start = rng.randint(1, len(_ELEMENTS) - 1)
        changes = signed_changes(
            rng, start, weighted_choice(rng, {3: 2, 4: 3, 5: 3, 6: 1}), 1, len(_ELEMENTS) - 1, 7
        )
        return {"start": _ELEMENTS[start], "changes": changes}

    def slots(self, params: Params) -> dict[str, str]:
        steps = join([f"{'up' if change > 0 else 'down'} {abs(change)}" for change in params["changes"]])
        return {"start": params["start"], "steps": steps}

    def unslot(self, slots: dict[str, str]) -> Params:
        changes, total = [], _ELEMENTS.index(slots["start"])
        for word in split_words(slots["steps"]):
            match = match_step(r"(up|down) (\d+)", word)
            changes.append(int(match[2]) * (1 if match[1] == "up" else -1))
            total += changes[-1]
            if not 1 <= total < len(_ELEMENTS):
                raise ValueError("the walk leaves the table")
        return {"start": slots["start"], "changes": changes}

    def first(self, params: Params) -> Say:
        return Say("chain.start", {"element": params["start"], "a": str(_ELEMENTS.index(params["start"]))})

    def steps(self, params: Params) -> list[list[Say]]:
        out = []
        totals = running_totals(_ELEMENTS.index(params["start"]), params["changes"])
        for (a, d, b), change in zip(totals, params["changes"], strict=True):
            way, sign = ("up", "plus") if change > 0 else ("down", "minus")
            numbers = {"a": str(a), "d": str(d)}
            out.append(
                [
                    Say(f"chain.{way}", {"element": _ELEMENTS[a], **numbers}),
                    Say(f"chain.{sign}", {**numbers, "b": str(b), "element": _ELEMENTS[b]}),
                ]
            )
        return out

    def last(self, params: Params) -> Say:
        end = _ELEMENTS.index(params["start"]) + sum(params["changes"])
        return Say("chain.end", {"element": _ELEMENTS[end]})


class _Walk(Steps):
    """Moves along a fixed order (a circle of people, the alphabet), each counted out."""

    order: ClassVar[tuple[str, ...]]
    mover: ClassVar[str]
    verb: ClassVar[str]
    top: ClassVar[int]
    circular: ClassVar[bool]

    def draw(self, rng: random.Random) -> Params:
        count = weighted_choice(rng, {3: 2, 4: 3, 5: 3})
        while True:
            # All different, so that each is found in the prompt; no "1 places"
            moves = rng.sample(range(2, self.top + 1), count)
            start = rng.randrange(len(self.order))
            if self.circular or start + sum(moves) < len(self.order):
                return {"start": self.order[start], "moves": moves}

    def slots(self, params: Params) -> dict[str, str]:
        return {"start": params["start"], "moves": join([str(move) for move in params["moves"]])}

    def unslot(self, slots: dict[str, str]) -> Params:
        moves = [int(word) for word in split_words(slots["moves"])]
        if not self.circular and self.order.index(slots["start"]) + sum(moves) >= len(self.order):
            raise ValueError("the walk leaves the order")
        if slots["start"] not in self.order or min(moves) < 1:
            raise ValueError("no such walk")
        return {"start": slots["start"], "moves": moves}

    def first(self, params: Params) -> Say:
        return Say(f"{self.name}.start", {self.mover: params["start"]})

    def steps(self, params: Params) -> list[list[Say]]:
        out, at = [], self.order.index(params["start"])
        for move in params["moves"]:
            passed = [self.order[(at + i) % len(self.order)] for i in range(1, move + 1)]
            out.append(
                [
                    Say(f"{self.name}.{self.verb}", {self.mover: self.order[at], "d": str(move)}),
                    Say(f"{self.name}.land", {"passed": ", ".join(passed), self.mover: passed[-1]}),
                ]
            )
            at = (at + move) % len(self.order)
        return out

    def last(self, params: Params) -> Say:
        end = (self.order.index(params["start"]) + sum(params["moves"])) % len(self.order)
        return Say(f"{self.name}.end", {self.mover: self.order[end]})


class Circle(_Walk):
    name = "circle"
    weight = 4.0
    order = PEOPLE
    mover, verb, top, circular = "who", "pass", 6, True
    wordings = (
        "Eight friends sit in a circle in the order of the alphabet, from Anna to Henry. "
        "{start} has a ball, and it moves on by {moves} places. Follow it.",
        "A ball starts with {start} in the circle from Anna to Henry and moves on by {moves} places. Who keeps it?",
    )


class Letters(_Walk):
    name = "letters"
    weight = 3.0
    order = tuple(LETTERS)
    mover, verb, top, circular = "letter", "move", 6, False
    wordings = (
        "Start at the letter {start} and move on by {moves} letters.",
        "Walk through the alphabet from {start} by {moves} letters.",
    )


class Bag(Steps):
    """A memory game: each step repeats all that was packed before."""

    name = "bag"
    weight = 3.0
    wordings = ("Play the packing game with {items}.", "Pack a bag with {items}, one after another.")

    def draw(self, rng: random.Random) -> Params:
        return {"items": rng.sample(PACKED, weighted_choice(rng, {4: 2, 5: 3, 6: 3, 7: 2}))}

    def slots(self, params: Params) -> dict[str, str]:
        return {"items": join(params["items"])}

    def unslot(self, slots: dict[str, str]) -> Params:
        items = split_words(slots["items"])
        if not set(items) <= set(PACKED):
            raise ValueError("not a packing list")
        return {"items": items}

    def key(self, params: Params) -> list[str]:
        return sorted(params["items"])

    def first(self, params: Params) -> Say:
        return Say("bag.start", {})

    def steps(self, params: Params) -> list[list[Say]]:
        items = params["items"]
        return [
            [Say("bag.add", {"item": item}), Say("bag.all", {"items": join(items[: index + 1])})]
            for index, item in enumerate(items)
        ]

    def last(self, params: Params) -> Say:
        return Say("bag.end", {})


class Tower(Steps):
    """Blocks put on a tower and taken off again."""

    name = "tower"
    weight = 4.0
    wordings = (
        "Build a tower: {moves}. Say what it looks like.",
        "Describe a tower while it is built: {moves}.",
    )

    def draw(self, rng: random.Random) -> Params:
        moves: list[str] = []
        tower: list[str] = []
        size = weighted_choice(rng, {4: 1, 5: 2, 6: 3, 7: 2})
        while len(moves) < size:
            if len(tower) > 1 and moves[-1] != "take one off" and rng.random() < 0.3:
                moves.append("take one off")
                tower.pop()
                continue
            colour = rng.choice(COLOURS)
            if f"add {colour}" not in moves:
                moves.append(f"add {colour}")
                tower.append(colour)
        return {"moves": moves}

    def slots(self, params: Params) -> dict[str, str]:
        return {"moves": ", ".join(params["moves"])}

    def unslot(self, slots: dict[str, str]) -> Params:
        moves, height = slots["moves"].split(", "), 0
        for move in moves:
            if move != "take one off" and move not in {f"add {colour}" for colour in COLOURS}:
                raise ValueError("not a move")
            height += 1 if move.startswith("add") else -1
            if height < 1:
                raise ValueError("the tower is gone")
        return {"moves": moves}

    def key(self, params: Params) -> list[str]:
        return list(params["moves"])

    def _states(self, params: Params) -> list[tuple[str, list[str]]]:
        """The colour moved, and the tower after it, for each move."""
        tower: list[str] = []
        out = []
        for move in params["moves"]:
            colour = tower.pop() if move == "take one off" else move.removeprefix("add ")
            if move != "take one off":
                tower.append(colour)
            out.append((colour, list(tower)))
        return out

    def first(self, params: Params) -> Say:
        return Say("tower.start", {})

    def steps(self, params: Params) -> list[list[Say]]:
        return [
            [
                Say("tower.take" if move == "take one off" else "tower.add", {"colour": colour}),
                Say("tower.all", {"colours": join(tower)}),
            ]
            for move, (colour, tower) in zip(params["moves"], self._states(params), strict=True)
        ]

    def last(self, params: Params) -> Say:
        return Say("tower.end", {"colour": self._states(params)[-1][1][-1]})
