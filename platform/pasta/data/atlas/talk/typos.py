"""Slips of fast typists: one letter wrong, no capitals, short forms, marks left out."""

import random
import re

from pasta.data.atlas.facts import KIND_OF
from pasta.data.atlas.words import read_words

_SHORT = read_words("manners")["short"]


def noisy(rng: random.Random, text: str) -> str:
    """The text in one of the cases that people write, with short forms, without marks or with a typo now and then."""
    if rng.random() < 0.05:
        for long, short in _SHORT.items():
            text = re.sub(rf"\b{long}\b", rng.choice(short), text)
    if rng.random() < 0.08:
        text = re.sub(r"(?<=\w)'(?=\w)", "", text)
    if rng.random() < 0.05:
        text = re.sub(r"[,:;?!.\"](?= |$)", "", text)
    chance = rng.random()
    if chance < 0.6:
        text = text[:1].upper() + text[1:]
    elif chance < 0.94:
        text = text.lower()
    elif chance < 0.96:
        text = text.upper()
    elif chance < 0.97:
        text = text.title()
    return typo(rng, text) if rng.random() < 0.15 else text


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
