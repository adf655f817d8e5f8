"""Copying exercises: repeat, in order, what the prompt lists.

A training aid, not a task family. The tasks ask a model to take the next subject out of the prompt, but only one
token in forty of their answers depends on that, and a model learns every fact long before it learns to look. In these
exercises nearly every token does, so that the circuit forms early (docs/notes/training.md).
"""

import random

from pasta.data.atlas.facts import FACTS, spoken
from pasta.data.atlas.family import join
from pasta.data.atlas.steps import PEOPLE
from pasta.data.atlas.walks import COLOURS, PACKED
from pasta.lang import Document, Text

_NAMES = [spoken(name) for rows in FACTS.values() for name in rows]
_NUMBERS = [str(number) for number in range(121)]
_THINGS = [*PEOPLE, *COLOURS, *PACKED]
_ASK = (
    "Repeat after me: {list}.",
    "Say these again in order: {list}.",
    "List {list}.",
    "Name {list} one by one.",
)
_ASK_PAIRS = ("Say who has what: {list}.", "Repeat each with its number: {list}.")
_SAY = (
    "{x}",
    "Here is {x}.",
    "Next comes {x}.",
    "You asked for {x}, and so I say {x}.",
    "One of them is {x}.",
)
_SAY_PAIR = ("{x} has {n}.", "The number of {x} is {n}.", "{x}, then {n}, is what you said.")


def sample_echo(rng: random.Random) -> tuple[str, Document]:
    """A prompt and its answer: 3 to 12 distinct names, things or numbers, alone or with a number each."""
    count = rng.randint(3, 12)
    pool = rng.choice((_NAMES, _NAMES, _THINGS, _NUMBERS))
    items = rng.sample(pool, count)
    if rng.random() < 0.5:  # to the letter: the easiest form, from which the others grow
        copied = rng.choice((join(items), ", ".join(items), "\n- ".join(["", *items]), " ".join(items)))
        return f"Copy: {copied}", Document((Text(copied),))
    mark = rng.choice(("\n- {say}", "\n{i}. {say}", "\n\n{say}", " {say}"))
    if rng.random() < 0.3:
        numbers = rng.choices(_NUMBERS, k=count)
        listed = [f"{x} {n}" for x, n in zip(items, numbers, strict=True)]
        ask, say = rng.choice(_ASK_PAIRS), rng.choice(_SAY_PAIR)
    else:
        numbers, listed = [""] * count, items
        ask, say = rng.choice(_ASK), rng.choice(_SAY)
    said = [say.format(x=x, n=n) for x, n in zip(items, numbers, strict=True)]
    lines = "".join(mark.format(i=i, say=line) for i, line in enumerate(said, start=1))
    return ask.format(list=join(listed)), Document((Text(f"Here they are:{lines}"),))
