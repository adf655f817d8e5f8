"""The base of task families in which each step needs the one before: nothing can be decoded in parallel."""

import itertools
import random
import re

from pasta.data.atlas.family import Family, Params
from pasta.data.atlas.plan import Plan, Say, after, lead

PEOPLE = ("Anna", "Ben", "Clara", "David", "Ella", "Frank", "Grace", "Henry")
STEP_COUNTS = {3: 1.0, 4: 2.0, 5: 3.0, 6: 3.0, 7: 2.0}


class Steps(Family):
    """Steps laid out like the parts of an independent answer, between a first and a last statement."""

    independent = False

    def first(self, params: Params) -> Say:
        raise NotImplementedError

    def steps(self, params: Params) -> list[list[Say]]:
        raise NotImplementedError

    def last(self, params: Params) -> Say:
        raise NotImplementedError

    def plan(self, params: Params, layout: str) -> Plan:
        return [say for step in self.laid_out_steps(params, layout) for say in step]

    def laid_out_steps(self, params: Params, layout: str) -> list[list[Say]]:
        """The answer step by step; the opening statement and the last one are steps of their own."""
        first, last = self.first(params), self.last(params)
        steps = [
            [
                Say(say.form, say.fields, " " if place else lead(layout, index))
                for place, say in enumerate(step)
            ]
            for index, step in enumerate(self.steps(params))
        ]
        return [
            [Say(first.form, first.fields, "")],
            *steps,
            [Say(last.form, last.fields, after(layout))],
        ]


def signed_changes(rng: random.Random, start: int, steps: int, low: int, high: int, top: int) -> list[int]:
    """Changes of different sizes, at most ``top``, that keep the running total within bounds."""
    while True:
        changes = [size * rng.choice((1, -1)) for size in rng.sample(range(2, top + 1), steps)]
        totals = list(itertools.accumulate(changes, initial=start))
        if low <= min(totals) and max(totals) <= high:
            return changes


def running_totals(start: int, changes: list[int]) -> list[tuple[int, int, int]]:
    """(before, size of change, after) of each step."""
    out = []
    for change in changes:
        out.append((start, abs(change), start + change))
        start += change
    return out


def match_step(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"not a step: {text!r}")
    return match
