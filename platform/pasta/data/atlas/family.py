"""The interface of task families, and helpers that they share."""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pasta.data.atlas.facts import FACTS, spoken
from pasta.data.atlas.plan import Plan

Params = dict[str, Any]


class Family:
    """One kind of task: how its parameters are drawn, worded, read back from a wording, and answered.

    ``wordings`` are templates over the slots that :meth:`slots` fills and :meth:`unslot` reads back. ``laid_out``
    families let the prompt choose the layout; ``weight`` is the family's share of sampled prompts (relative).
    """

    name: ClassVar[str]
    independent: ClassVar[bool]
    weight: ClassVar[float]
    wordings: ClassVar[tuple[str, ...]]
    laid_out: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("bullets", "numbered", "paragraphs", "inline")
    closing_rate: ClassVar[float] = 0.2

    def draw(self, rng: random.Random) -> Params:
        """Parameters of a new task, without wording, layout and closing."""
        raise NotImplementedError

    def slots(self, params: Params) -> dict[str, str]:
        """The text of each slot of the wordings."""
        raise NotImplementedError

    def unslot(self, slots: dict[str, str]) -> Params:
        """The inverse of :meth:`slots`. May raise ``KeyError`` or ``ValueError`` if the text is not this family's."""
        raise NotImplementedError

    def plan(self, params: Params, layout: str) -> Plan:
        """The answer, without the closing line."""
        raise NotImplementedError

    def key(self, params: Params) -> list[Any]:
        """What is held out: the combination of entities or parameters, regardless of order."""
        return sorted([key, value] for key, value in params.items())


def weighted_choice(rng: random.Random, weights: dict[int, float]) -> int:
    return rng.choices(list(weights), list(weights.values()))[0]


def join(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


_NAMES = {name for rows in FACTS.values() for name in rows}
_NAME_BY_SPOKEN = {spoken(name): name for name in _NAMES}
_NAME = re.compile("|".join(re.escape(text) for text in sorted(_NAME_BY_SPOKEN, key=lambda t: (-len(t), t))))


def join_names(names: Iterable[str]) -> str:
    return join([spoken(name) for name in names])


def read_names(text: str) -> list[str]:
    """The inverse of :func:`join_names`. Raises ``ValueError`` if the text is not such a list."""
    names = [_NAME_BY_SPOKEN[match] for match in _NAME.findall(text)]
    if not names or join_names(names) != text:
        raise ValueError(f"not a list of known names: {text!r}")
    return names


def split_words(text: str) -> list[str]:
    """The inverse of :func:`join` for words without ``and``."""
    return re.split(r", | and ", text)
