"""Wordings: which split has which, and alternatives within one, so that few lines stand for many sentences.

A wording "[what|which] {noun} does {x} have" stands for two sentences. Alternatives may be empty and may be nested. A
split owns a wording with all that it stands for: otherwise the held-out sentences would be the neighbours of those in
training.
"""

import random
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import product
from typing import Literal

TalkSplit = Literal["train", "dev", "test"]
TALK_SPLITS: tuple[TalkSplit, ...] = ("train", "dev", "test")

#: Lists shorter than this are shared by all splits.
_TOO_FEW = 5
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


@cache
def part(options: tuple[str, ...], split: TalkSplit) -> tuple[str, ...]:
    """The options that belong to a split: a tenth each, at least one, for dev and test; all if there are under five.

    They are among the longest third. What is shorter people say most ("what is {x}"), and a model that never saw it
    would be of no use.
    """
    if len(options) < _TOO_FEW:
        return options
    by_length = sorted(dict.fromkeys(options), key=lambda text: (min(map(len, variants(text))), text))
    longer = by_length[-max(2, len(by_length) // 3) :]
    order = sorted(longer, key=lambda text: sha256(text.encode()).digest())
    size = max(1, len(by_length) // 10)
    held_out = {"dev": order[:size], "test": order[size : 2 * size]}
    if split != "train":
        return tuple(text for text in options if text in held_out[split])
    return tuple(text for text in options if text not in (*held_out["dev"], *held_out["test"]))


def split_of_names(names: Sequence[str]) -> TalkSplit:
    """The split of a combination of names, whatever their order."""
    share = sha256("|".join(sorted(names)).encode()).digest()[0] / 256
    return "dev" if share < 0.1 else "test" if share < 0.2 else "train"


def word(rng: random.Random, split: TalkSplit, options: Sequence[str]) -> str:
    """A sentence of a split: one of what its wordings stand for, and none that a held-out wording stands for too."""
    options = tuple(options)
    while True:
        text = sentence(rng, part(options, split))
        if text not in _of_others(options, split):
            return text


def sentence(rng: random.Random, options: Sequence[str]) -> str:
    """One of what wordings stand for; a wording that stands for many is drawn more often, not that often."""
    (wording,) = rng.choices(options, _shares(tuple(options)))
    text = wording
    while (found := _INNERMOST.search(text)) is not None:
        text = text[: found.start()] + rng.choice(found[1].split("|")) + text[found.end() :]
    return _tidy(text, wording)


def _tidy(text: str, wording: str) -> str:
    """A sentence without the gaps that empty alternatives leave, at its ends too unless the wording has them there."""
    text = re.sub(" +(?=[,:;.?!])", "", re.sub(" {2,}", " ", text))
    text = text if wording.startswith(" ") else text.lstrip(" ")
    return text if wording.endswith(" ") else text.rstrip(" ")


@cache
def _of_others(options: tuple[str, ...], split: TalkSplit) -> frozenset[str]:
    """Sentences of the splits that go first where several have one: test before dev, both before train."""
    if len(options) < _TOO_FEW:
        return frozenset()
    others = TALK_SPLITS[TALK_SPLITS.index(split) + 1 :]
    return frozenset(text for other in others for option in part(options, other) for text in variants(option))


@cache
def _shares(options: tuple[str, ...]) -> list[float]:
    return [len(variants(option)) ** 0.5 for option in options]


@cache
def variants(wording: str) -> tuple[str, ...]:
    """All sentences that a wording stands for."""
    texts = [wording]
    while any("[" in text for text in texts):
        texts = [new for text in texts for new in _without_innermost(text)]
    return tuple(dict.fromkeys(_tidy(text, wording) for text in texts))


def _without_innermost(text: str) -> list[str]:
    """The text once for each choice among its innermost alternatives."""
    pieces = _INNERMOST.split(text)  # text, alternatives, text, ...
    choices = [piece.split("|") if at % 2 else [piece] for at, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]
