"""How people write: names in any form, lists with any separator, politeness, lower case, typos of one letter."""

import random
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Literal

from pasta.data.atlas.facts import KIND_OF, with_article
from pasta.data.atlas.words import read_words

TalkSplit = Literal["train", "dev", "test"]
TALK_SPLITS: tuple[TalkSplit, ...] = ("train", "dev", "test")

_WORDS = read_words("manners")


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
    return str(_WORDS["irregular"].get(noun, f"{noun}s"))


def fill(template: str, value: str) -> str:
    """A wording with its value; ``{v}s`` is the value's plural."""
    return template.replace("{v}s", plural(value)).replace("{v}", value)


def spell(rng: random.Random, name: str) -> str:
    """One way in which people name a thing, misspelt one time in three."""
    return misspelt(rng, _called(rng, name))


def misspelt(rng: random.Random, name: str, rate: float = 0.33) -> str:
    return typo(rng, name) if rng.random() < rate else name


def _called(rng: random.Random, name: str) -> str:
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
    """Names in one list, each kind called alike, with separators that people use."""
    state = rng.random()
    called = [_called(random.Random(f"{state}:{KIND_OF.get(name)}"), name) for name in names]
    rate = rng.choice((0.0, 0.4))
    texts = [misspelt(rng, text, rate) for text in called]
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


def typed(rng: random.Random, text: str, split: TalkSplit) -> str:
    """A request as a person types it: politeness around it, its end mark, case and at most one typo."""
    question, order = _ASKS.match(text) is not None, _ORDERS.match(text) is not None
    frame = "{x}"
    if "\n" not in text and rng.random() < 0.6:
        turned = _indirect(text) if question and rng.random() < 0.35 else None
        gerund = _gerund(text) if order and rng.random() < 0.1 else None
        if turned or gerund:
            text = turned or gerund or text
            frame = rng.choice(part(_WORDS["indirect" if turned else "gerund"], split))
        else:
            around = "orders" if order else "questions" if question else "anything"
            frame = rng.choice(part(_WORDS[around], split))
        if rng.random() < 0.12:
            frame = rng.choice(_WORDS["greet"]) + frame
    asked = frame.endswith("?") or not order
    text = frame.removesuffix("?").replace("{x}", text)
    ends = ("?", "?", "?", "", "??") if asked else (".", ".", "", "", "!")
    end = "" if text.endswith("\n") else rng.choice(ends)
    return noisy(rng, text + end + (rng.choice(_WORDS["thank"]) if rng.random() < 0.06 else ""))


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
    gerund = _WORDS["gerunds"].get(first)
    return gerund and f"{gerund} {rest}"


def noisy(rng: random.Random, text: str) -> str:
    """The text with a capital or not, in lower case now and then, with short forms or a typo now and then."""
    if rng.random() < 0.08:
        for long, short in _WORDS["short"].items():
            text = re.sub(rf"\b{long}\b", rng.choice(short), text)
    chance = rng.random()
    if chance < 0.62:
        text = text[:1].upper() + text[1:]
    elif chance < 0.95:
        text = text.lower()
    elif chance < 0.965:
        text = text.upper()
    return typo(rng, text) if rng.random() < 0.22 else text


#: Letters that people take for others.
_ALIKE = {
    "a": "eo", "e": "ai", "i": "ey", "o": "au", "u": "o", "y": "i", "c": "ks", "k": "c", "s": "cz", "z": "s", "b": "p",
    "p": "b", "d": "t", "t": "d", "g": "j", "j": "g", "m": "n", "n": "m", "v": "wf", "w": "v", "f": "v", "l": "r",
    "r": "l",
}  # fmt: skip


def typo(rng: random.Random, text: str) -> str:
    """One letter of one word of at least four left out, changed, doubled or swapped with the next; never its first."""
    words = list(re.finditer(r"[^\W\d_]{4,}", text))
    if not words:
        return text
    word = rng.choice(words)
    while True:
        at = rng.randrange(word.start() + 1, word.end() - (len(word[0]) < 6))
        (how,) = rng.choices(("drop", "change", "swap", "double"), (4, 3, 2, 1.5))
        letter, after = text[at], text[at + 1 : at + 2]
        if how == "drop":
            new, skip = "", 1
        elif how == "double":
            new, skip = 2 * letter, 1
        elif how == "swap":
            new, skip = after + letter, 2
        elif letter in _ALIKE and rng.random() < 0.7:
            new, skip = rng.choice(_ALIKE[letter]), 1
        else:
            new, skip = rng.choice("abcdefghijklmnopqrstuvwxyz"), 1
        out = text[:at] + new + text[at + skip :]
        if out != text and (how != "swap" or at + 1 < word.end()) and out not in KIND_OF:
            return out
