"""Reads conversations as people type them, each with what right answers contain, from six files beside this one:
``dev`` and ``test``, ``dev-2`` and ``test-2``, ``dev-3`` and ``test-3``.

They were written from the atlas' facts alone, without a look at how its training data is made. To tune a model, look at
the ``dev`` files only. A line is a ``Conversation``; files of your own have the same form.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pasta.config import parse_config
from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.errors import UserError
from pasta.rows import read_rows

Kind = Literal[
    "one fact", "describe", "compare", "which", "polite", "typo", "follow-up", "greeting", "outside"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Split = Literal["dev", "test", "dev-2", "test-2", "dev-3", "test-3"]
SPLITS: tuple[Split, ...] = get_args(Split)
#: A text that an answer must contain, or several of which it must contain one.
Needed = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """What a person types, and what a right answer to it is.

    ``things`` are the names of the fact base that it is about. The answer ``contains`` some texts, has ``about`` a
    thing others, and states of each thing at least so many ``facts``. One that ``compares`` has a sentence that sets
    facts of things side by side. It says nothing in ``without``, and ``only`` such values of these columns as belong to
    the things. ``choice`` is the one of the things that it must pick, with one of ``superlatives``. ``greeting``: it
    greets. ``scope``: it says what the model knows. Neither states a fact.
    """

    user: str
    things: tuple[str, ...] = ()
    contains: tuple[Needed, ...] = ()
    about: dict[str, tuple[Needed, ...]] = field(default_factory=dict)
    facts: int = 0
    compares: bool = False
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    choice: str | None = None
    superlatives: tuple[str, ...] = ()
    greeting: bool = False
    scope: bool = False

    def __post_init__(self) -> None:
        for name in self.things:
            if name not in KIND_OF:
                raise ValueError(f"things {name!r}: expected a name of the fact base")
        for name in [*self.about, *([] if self.choice is None else [self.choice])]:
            if name not in self.things:
                raise ValueError(f"{name!r}: expected one of things")
        columns = {column for name in self.things for column in FACTS[KIND_OF[name]][name]}
        for column in self.only:
            if column not in columns:
                raise ValueError(f"only {column!r}: expected a column of the things")
        if self.facts < 0 or (self.facts and not self.things):
            raise ValueError(f"facts {self.facts}: expected a number of facts of each of things")
        if self.compares and len(self.things) < 2:
            raise ValueError("compares: expected two things at least")
        if (self.choice is None) != (not self.superlatives):
            raise ValueError("superlatives: expected with choice, and only then")
        if not (
            self.contains
            or self.about
            or self.facts
            or self.choice is not None
            or self.greeting
            or self.scope
        ):
            raise ValueError("expected one of contains, about, facts, choice, greeting, scope")

    @property
    def max_words(self) -> int:
        """The longest answer that a person would read: 40 words, 10 a thing, and 80 more for one that is described."""
        return 40 + (90 if self.facts else 10) * len(self.things)

    @property
    def max_threads(self) -> int:
        """The most threads that make sense, the main one included: 2 and one a thing, or 4 for one described."""
        return 2 + (4 if self.facts else 1) * len(self.things)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order. The answers before a turn are the model's own, as in a chat."""

    kind: Kind
    turns: tuple[ExpectedTurn, ...]

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("turns: expected one at least")


def split_file(split: Split) -> Path:
    """The file of a split."""
    return Path(__file__).with_name(f"{split}.jsonl")


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file, in order. Raises UserError, naming file and line."""
    rows = read_rows(path, key="--prompts", expected="a JSONL file of conversations")
    found = [parse_config(row, Conversation, place) for place, row in rows]
    if not found:
        raise UserError(f"--prompts: {path}: no conversations in it")
    return found
