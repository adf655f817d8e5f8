"""Bounds the tokens of a text from below without encoding it, so that what is too long is refused at once."""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import NamedTuple

#: Bytes of UTF-8 by class: ASCII letters, ASCII digits, what is not ASCII, and all else.
_CLASSES = (
    bytes(
        ord("a") if chr(byte).isalpha() else ord("0") if chr(byte).isdigit() else ord(" ")
        for byte in range(128)
    )
    + b"x" * 128
)


class _Counts(NamedTuple):
    """Counts of each kind of character in a text. Each count of a text is at most the sum of its tokens' counts."""

    words: int
    letters: int
    digits: int
    chars: int

    def __add__(self, other: "_Counts") -> "_Counts":  # type: ignore[override]
        return _Counts(*(one + another for one, another in zip(self, other, strict=True)))


def _counts(text: str) -> _Counts:
    """The counts of a text. Words are runs of ASCII letters, wherever the text begins."""
    classes = text.encode("utf-8", "surrogatepass").translate(_CLASSES)
    starts = sum(map(classes.count, (b" a", b"0a", b"xa"))) + classes.startswith(b"a")
    return _Counts(starts, classes.count(b"a"), classes.count(b"0"), len(text))


def _composed(text: str) -> _Counts:
    """The counts that are left of a text if its tokenizer composes characters (NFC): a letter and an accent may become
    one character, which is no ASCII letter."""
    if text.isascii():
        return _counts(text)
    found = _counts(text)
    accented = text.encode("utf-8", "surrogatepass").translate(_CLASSES).count(b"ax")
    chars = min(found.chars, len(unicodedata.normalize("NFC", text)))
    return _Counts(found.words - accented, found.letters - accented, found.digits, chars)


class LeastTokens:
    """A lower bound of the tokens that texts become with one tokenizer.

    A tokenizer that loses nothing cuts a text into entries of its ``vocabulary`` (token to id), so there are at least
    as many tokens as the text has words, divided by the most words in an entry; and so for letters, digits and
    characters. Few vocabularies have entries of several words, but many have long ones of spaces: words are what makes
    the bound tight. ``special`` ids are left out: no text becomes one. ``decode`` gives the text of an entry that is
    written as a byte's number.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], special: Iterable[int], decode: Callable[[list[int]], str]
    ) -> None:
        left_out = frozenset(special)
        most = [1] * len(_Counts._fields)
        for token, token_id in vocabulary.items():
            if token_id in left_out:
                continue
            # Most entries are one word of no great length.
            tail = token[1:]
            if tail.isascii() and tail.isalpha() and len(token) <= most[1]:
                continue
            if token.startswith("<0x") and len(token) == len("<0x00>"):
                token = decode([token_id])
            most = list(map(max, most, _counts(token)))
        self._most = _Counts(*most)

    def __call__(self, *texts: str) -> int:
        """The least number of tokens of these texts together. Spaces around each may be left out."""
        counts = reduce(_Counts.__add__, (_composed(text.strip()) for text in texts), _Counts(0, 0, 0, 0))
        return max(-(-count // most) for count, most in zip(counts, self._most, strict=True))
