"""Turns answers into comparable words: one case, no accents, numbers in digits; splits them into sentences, and finds
what each sentence is about."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pasta.data.atlas.facts import FACTS, KIND_OF

_UNITS = {
    word: n
    for n, word in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], 1)
}
# "first" to "third" are left out: they count an answer's points more often than they state a fact.
_UNITS |= {word: n for n, word in enumerate(["fourth", "fifth", "sixth", "seventh", "eighth", "ninth"], 4)}
_TEENS = {"zero": 0, "ten": 10, "eleven": 11, "twelve": 12, "twentieth": 20}
_TEENS |= {
    f"{word}teen": n for n, word in enumerate(["thir", "four", "fif", "six", "seven", "eigh", "nine"], 13)
}
_TEENS |= {f"{word}teenth": n for n, word in enumerate(["four", "fif", "six", "seven", "eigh", "nine"], 14)}
_TENS = {f"{word}ty": 10 * n for n, word in enumerate(["twen", "thir", "for", "fif", "six", "seven"], 2)}
_TENS |= {"eighty": 80, "ninety": 90}
_TENS_PATTERN = re.compile(rf"\b({'|'.join(_TENS)})(?:[ -]({'|'.join(_UNITS)}))?\b")
_WORDS_PATTERN = re.compile(rf"\b({'|'.join([*_UNITS, *_TEENS])})\b")
_ORDINAL_ENDS = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_INITIALS = re.compile(r"\b([A-Z])\.(?=\s*[A-Z])")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_CONTRASTS = re.compile(r"[,;]?\s+(?=(?:while|whereas|but)\b)|;\s+")
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|lies?|lives?|eats?|flows?|ends?|rises?|uses?)\b")
_OF_ALL = re.compile(
    r"\b(?:both|all|each|they|neither|none|every|everything|these|either|the others?|the rest)\b"
)
#: Words before a name that only serves to place another thing.
_RELATION = re.compile(
    r"\b(?:after|before|beside|next to|behind|near|neighbou?rs?|borders?|bordering|follows?|following)"
    r"(?: is| are)?:? (?:the )?(?:element |country |planet )?$"
)
_ARTICLE = re.compile(r"^(?:the|an?|its|his|her) ")
#: Columns that state nothing: a name, a pronoun, and columns computed from others.
_NO_FACTS = ("name", "pronoun", "previous")


def normalise(text: str) -> str:
    """Remove case, accents, typographic quotes and markup; write numbers and ordinals in digits. Line breaks stay."""
    text = _INITIALS.sub(r"\1", text)
    text = unicodedata.normalize("NFKD", text)
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = re.sub(r"[*_`#|]", " ", text.replace("’", "'").replace("–", "-").replace("—", "-").casefold())
    text = _TENS_PATTERN.sub(lambda found: str(_TENS[found[1]] + _UNITS.get(found[2], 0)), text)
    text = _WORDS_PATTERN.sub(lambda found: str((_UNITS | _TEENS)[found[1]]), text)
    return re.sub(r"[ \t]+", " ", _ORDINAL_ENDS.sub(r"\1", text)).strip()


def sentences(text: str) -> list[str]:
    """Sentences and lines of a normalised text."""
    return [part.strip() for part in _SENTENCE_ENDS.split(text) if part.strip(" -.:")]


def simple_clauses(sentence: str) -> list[str]:
    """A sentence cut at all its commas, semicolons and colons, and at each "and" if what it joins has verbs throughout.
    ``parts`` cuts less: a clause there has all that is said of its things."""
    out: list[str] = []
    for clause in re.split(r"[,;:]\s", sentence):
        halves = clause.split(" and ")
        out += halves if all(_VERB.search(half) for half in halves) else [clause]
    return out


def has(text: str, wanted: str) -> bool:
    """Whether a normalised text has ``wanted`` as whole words, singular or plural."""
    return _words(wanted).search(text) is not None


def has_name(text: str, name: str) -> bool:
    """Whether a normalised text names a thing; a scientist's surname is enough, and a title without its article."""
    return place_of(text, name) is not None


def place_of(text: str, name: str) -> int | None:
    """The position at which a normalised text first names a thing, in characters; None if it does not."""
    found = _name(name).search(text)
    return None if found is None else found.start()


def speaks_of(text: str, name: str) -> bool:
    """Whether a normalised text names a thing other than to place another one: not in "it stands after copper"."""
    return any(not _RELATION.search(text[: found.start()]) for found in _name(name).finditer(text))


def facts_of(name: str) -> dict[str, str]:
    """The facts of a thing by column, normalised and without an article."""
    row = FACTS[KIND_OF[name]][name]
    return {column: value_of(text) for column, text in row.items() if is_fact(column)}


def is_fact(column: str) -> bool:
    """Whether a column of the fact base states something."""
    return column not in _NO_FACTS and not column.endswith(("_a", "_my"))


def value_of(text: str) -> str:
    """A value of the fact base in the form in which texts are searched for it."""
    return _ARTICLE.sub("", normalise(text))


@dataclass(frozen=True, slots=True)
class Clause:
    """A sentence, or a half of one that contrasts things, and the things that it is about."""

    text: str
    things: frozenset[str]


def parts(text: str, things: Sequence[str]) -> list[Clause]:
    """The clauses of a normalised text. One that names none of ``things`` is about the things named last; before the
    first is named, or after a word such as "both", about all of them."""
    out = []
    current = frozenset(things)
    for sentence in sentences(text):
        for clause in _clauses(sentence, things):
            named = frozenset(name for name in things if speaks_of(clause, name))
            if named:
                current = named
            about = current if named or not _OF_ALL.search(clause) else frozenset(things)
            out.append(Clause(clause, about))
    return out


def _clauses(sentence: str, things: Sequence[str]) -> list[str]:
    """A sentence cut before "while", and after a comma where a thing, or "the others", has a verb of its own."""
    out: list[str] = []
    for clause in _CONTRASTS.split(sentence):
        begun = len(out)
        for piece in clause.split(", "):
            named = sum(speaks_of(piece, name) for name in things)
            is_own = named == 1 or (not named and _OF_ALL.search(piece))
            if len(out) == begun or (is_own and _VERB.search(out[-1]) and _VERB.search(piece)):
                out.append(piece)
            else:
                out[-1] += f", {piece}"
    return out


def said_about(text: str, name: str, things: Sequence[str]) -> str:
    """What a normalised text says about one of ``things``."""
    return "\n".join(part.text for part in parts(text, things) if name in part.things)


@cache
def _words(wanted: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(normalise(wanted))}(?:'?s|es)?(?!\w)")


@cache
def _name(name: str) -> re.Pattern[str]:
    spoken = normalise(name).removeprefix("the ")
    spellings = [spoken.split()[-1] if KIND_OF.get(name) == "scientists" else spoken]
    for end, plural in (("f", "ves"), ("y", "ies")):
        if spoken.endswith(end):
            spellings.append(spoken.removesuffix(end) + plural)
    return re.compile(rf"(?<!\w)(?:{any_of(spellings)})(?:'?s|es)?(?!\w)")


def any_of(texts: Iterable[str]) -> str:
    """A pattern for any of some texts, the longest first; of no texts one that matches nothing."""
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or "(?!)"
