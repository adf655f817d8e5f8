"""How people write: names in any form, lists with any separator, politeness, lower case, typos of one letter."""

import random
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Literal

from pasta.data.atlas.facts import KIND_OF, with_article

TalkSplit = Literal["train", "dev", "test"]
TALK_SPLITS: tuple[TalkSplit, ...] = ("train", "dev", "test")

_IRREGULAR = {
    "wolf": "wolves", "butterfly": "butterflies", "salmon": "salmon", "fox": "foxes", "ostrich": "ostriches",
    "gas": "gases", "noble gas": "noble gases", "fish": "fish",
}  # fmt: skip

ORDERS = (
    "please {x}", "can you {x}?", "could you {x}?", "could you please {x}?",
    "{x} please", "{x}, please", "hey, {x}", "hi! {x}", "hello, {x}", "I would like you to {x}",
    "I want you to {x}",
    "would you {x}?", "can you please {x}?", "now {x}", "just {x}", "ok, {x}", "{x}, thanks",
    "will you {x}?",
    "I need you to {x}", "hi, can you {x}?", "would you kindly {x}?", "go ahead and {x}", "{x} for me",
    "kindly {x}",
)  # fmt: skip
QUESTIONS = (
    "hey, {x}", "hi! {x}", "please tell me, {x}", "tell me: {x}",
    "do you know {x}", "quick question: {x}", "{x} thanks", "I was wondering: {x}", "{x} please", "so {x}",
    "can you tell me {x}", "hello, {x}", "I wonder {x}", "question: {x}", "one question: {x}", "ok, {x}",
)  # fmt: skip


ANYTHING = (
    "{x} please", "{x}, please", "hey, {x}", "hi! {x}", "hello, {x}", "{x}, thanks", "{x} thanks", "hi, {x}",
    "ok, {x}", "well, {x}", "hm, {x}", "right, {x}", "good, {x}",
)  # fmt: skip
INDIRECT = (
    "I would like to know {x}", "can you tell me {x}?", "could you please tell me {x}?", "tell me {x}",
    "do you know {x}?", "please tell me {x}", "I want to know {x}", "could you tell me {x}?", "I wonder {x}",
    "I'd like to know {x}", "would you tell me {x}?", "please explain {x}", "can you plz tell me {x}?",
    "I need to know {x}", "explain {x}",
)  # fmt: skip
GERUND = (
    "would you mind {x}?", "would you mind {x} for me?", "how about {x}?", "do you mind {x}?",
    "I would appreciate you {x}", "what about {x}?",
)  # fmt: skip
_GREET = (
    "hi! ",
    "hello, ",
    "good morning, ",
    "good evening, ",
    "hey! ",
    "dear assistant, ",
    "excuse me, ",
    "hi there, ",
)
_THANK = (" thank you!", " thanks!", " thanks", " thank you", " thx", " please")


@cache
def part(options: tuple[str, ...], split: TalkSplit) -> list[str]:
    """The options that belong to a split: a tenth each, at least one, for dev and test; all if there are under five."""
    if len(options) < 5:
        return list(options)
    order = sorted(dict.fromkeys(options), key=lambda text: sha256(text.encode()).digest())
    size = max(1, len(order) // 10)
    cuts = {"dev": order[:size], "test": order[size : 2 * size], "train": order[2 * size :]}
    chosen = set(cuts[split])
    return [text for text in options if text in chosen]


def split_of_names(names: Sequence[str]) -> TalkSplit:
    """The split of a combination of names, whatever their order."""
    share = sha256("|".join(sorted(names)).encode()).digest()[0] / 256
    return "dev" if share < 0.1 else "test" if share < 0.2 else "train"


def plural(noun: str) -> str:
    return _IRREGULAR.get(noun, f"{noun}s")


def fill(template: str, value: str) -> str:
    """A wording with its value; ``{v}s`` is the value's plural."""
    return template.replace("{v}s", plural(value)).replace("{v}", value)


def spell(rng: random.Random, name: str) -> str:
    """One way in which people name a thing."""
    kind = KIND_OF.get(name, "")
    ways: tuple[str, ...]
    if kind == "animals":
        ways = (name, name, f"the {name}", f"the {name}", plural(name), plural(name), with_article(name))
    elif kind == "instruments":
        ways = (name, name, f"the {name}", f"the {name}", with_article(name))
    elif kind == "rivers":
        ways = (name, f"the {name}", f"the {name}", f"the {name} river", f"the river {name}", f"{name} river")
    elif kind == "scientists":
        ways = (name, name, name, name.rsplit(" ", 1)[1])
    elif kind == "books":
        ways = (name, name, f'"{name}"', f"the book {name}", f"'{name}'")
    elif kind == "planets":
        ways = (name, name, name, f"planet {name}", f"the planet {name}")
    elif kind == "elements":
        ways = (name, name, name, name.capitalize(), f"the element {name}")
    else:
        ways = (name,)
    return rng.choice(ways)


_GAPS = (
    (", ", " and "), (", ", " and "), (", ", " and "), (", ", ", and "), (", ", ", "), (" and ", " and "),
    (", ", " & "), (" & ", " & "), ("/", "/"), (" / ", " / "), ("; ", "; "), (", ", " plus "), ("\n", "\n"),
    ("\n- ", "\n- "), (" ", " "), (", ", " or "), (",", ","), (" + ", " + "),
)  # fmt: skip


def listed(rng: random.Random, names: Sequence[str]) -> str:
    """Names in one list, spelt alike, with separators that people use."""
    state = rng.random()
    texts = [spell(random.Random(f"{state}:{KIND_OF.get(name)}"), name) for name in names]
    while True:
        middle, last = rng.choice(_GAPS)
        if middle != " " or all(" " not in text for text in texts):
            break
    before = middle if middle.startswith("\n") else ""
    head = middle.join(texts[:-1])
    return before + (head + last if head else "") + texts[-1]


_ASKS = re.compile(
    r"(?!(?:what|how) about|what of|what else)(?:what|which|who|where|when|how|why|whose|is|are|was|did|do|does|has"
    r"|have|would|can|will|in which|on which|of which|by whom|into which)\b"
)
_ORDERS = re.compile(
    r"(?:tell|describe|give|say|explain|introduce|write|summarize|teach|talk|present|show|outline|let|help|inform|brief|list"
    r"|name|compare|contrast|make|create|prepare|find|remind|look|draft|send|compose|plan|pretend|speak|cover|mention|count"
    r"|sum|recommend)\b"
)


def say(rng: random.Random, text: str, split: TalkSplit) -> str:
    """A request as a person types it: politeness around it, its end mark, case and at most one typo."""
    question, order = _ASKS.match(text) is not None, _ORDERS.match(text) is not None
    frame = "{x}"
    if "\n" not in text and rng.random() < 0.6:
        turned = _indirect(text) if question and rng.random() < 0.35 else None
        gerund = _gerund(text) if order and rng.random() < 0.1 else None
        if turned or gerund:
            text = turned or gerund or text
            frame = rng.choice(part(INDIRECT if turned else GERUND, split))
        else:
            frame = rng.choice(part(ORDERS if order else QUESTIONS if question else ANYTHING, split))
        if rng.random() < 0.12:
            frame = rng.choice(_GREET) + frame
    asked = frame.endswith("?") or not order
    text = frame.removesuffix("?").replace("{x}", text)
    ends = ("?", "?", "?", "", "??") if asked else (".", ".", "", "", "!")
    end = "" if text.endswith("\n") else rng.choice(ends)
    return noisy(rng, text + end + (rng.choice(_THANK) if rng.random() < 0.06 else ""))


_TURNED = re.compile(r"((?:what|which|where|who|when|how|in which|on which)\b.*?) (is|are|was|were) (.+)")
_TAIL = re.compile(
    r"(.*) (made of|made from|used for|used in|called|famous for|known for|remembered for|named after|from|about|born"
    r"|played|spoken|written|good for)"
)


def _indirect(text: str) -> str | None:
    """A question as it stands after "I would like to know": "what X is made of"; None if it has no such form."""
    match = _TURNED.fullmatch(text)
    if match is None:
        return None
    asked, verb, rest = match.groups()
    tail = _TAIL.fullmatch(rest)
    return f"{asked} {tail[1]} {verb} {tail[2]}" if tail else f"{asked} {rest} {verb}"


def _gerund(text: str) -> str | None:
    first, _, rest = text.partition(" ")
    return f"{_GERUNDS[first]} {rest}" if first in _GERUNDS else None


_GERUNDS = {
    "tell": "telling", "describe": "describing", "compare": "comparing", "explain": "explaining",
    "give": "giving",
    "list": "listing", "write": "writing", "name": "naming", "introduce": "introducing", "say": "saying",
}  # fmt: skip


def noisy(rng: random.Random, text: str) -> str:
    """The text with a capital or not, in lower case now and then, with a typo now and then."""
    chance = rng.random()
    if chance < 0.62:
        text = text[:1].upper() + text[1:]
    elif chance < 0.95:
        text = text.lower()
    elif chance < 0.965:
        text = text.upper()
    return typo(rng, text) if rng.random() < 0.18 else text


def typo(rng: random.Random, text: str) -> str:
    """One letter of one word of at least five changed, doubled, left out or swapped with the next; not its first."""
    words = list(re.finditer(r"[^\W\d_]{5,}", text))
    if not words:
        return text
    word = rng.choice(words)
    at = rng.randrange(word.start() + 1, word.end() - 1)
    how = rng.randrange(4)
    if how == 0:
        return text[:at] + text[at + 1 :]
    if how == 1:
        return text[:at] + text[at] + text[at:]
    if how == 2:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :]
