"""What people put around a request: greetings, excuses, politeness, asides; and their case and typos."""

import random
import re
from functools import cache

from pasta.data.atlas.talk.typos import noisy
from pasta.data.atlas.talk.wordings import TalkSplit, sentence, word
from pasta.data.atlas.words import read_words

_WORDS = read_words("manners")
_ASKS = re.compile(
    r"(?!(?:what|how) about|what of|what else)(?:what|which|who|where|when|how|why|whose|is|are|was|did|do|does|has"
    r"|have|would|can|will|(?:in|on|of|by|into|from|to|through|after|out of) (?:what|which|whom))\b"
)
_ORDERS = re.compile(
    r"(?:tell|describe|give|say|explain|introduce|write|summarize|teach|talk|present|show|outline|let|help|inform|brief|list"
    r"|name|compare|contrast|make|create|prepare|find|remind|look|draft|send|compose|plan|pretend|speak|cover|mention|count"
    r"|sum|recommend|pick|choose|sort|put|order|set|fill|walk|run|enlighten|share|identify|guess)\b"
)
_TELLS = re.compile(r"(?:I|I'm|I'd|I've|my|we|we're|let's|our)\b")
#: How a question ends, how an order or a sentence does, and how words do that are neither.
_QUESTION_ENDS = ("?", "?", "?", "", "??")
_ORDER_ENDS = (".", ".", "", "", "!")
_OTHER_ENDS = ("?", "?", "", "", ".")


def typed(rng: random.Random, text: str, split: TalkSplit) -> str:
    """A request as a person types it: what stands around it, its end mark, case and at most one typo."""
    question, order = _ASKS.match(text) is not None, _ORDERS.match(text) is not None
    ends = _QUESTION_ENDS if question else _ORDER_ENDS if order or _TELLS.match(text) else _OTHER_ENDS
    frame = "{x}"
    if "\n" not in text and rng.random() < 0.33:
        turned = clause(text) if question and rng.random() < 0.45 else None
        gerund = _gerund(text) if order and rng.random() < 0.1 else None
        if turned or gerund:
            text = turned or gerund or text
            frame = word(rng, split, _WORDS["indirect" if turned else "gerund"])
            ends = _ORDER_ENDS
        else:
            frame = word(rng, split, _WORDS["orders" if order else "questions" if question else "anything"])
        ends = _QUESTION_ENDS if frame.endswith("?") else ends
        frame = frame.removesuffix("?")
    elif rng.random() < 0.2:
        frame = sentence(rng, _WORDS["greet"]) + frame
    if rng.random() < 0.1:
        frame = word(rng, split, _WORDS["excuses"]) + frame
    if "\n" not in text and rng.random() < 0.07:
        frame += word(rng, split, _WORDS["asides"])
    text = frame.replace("{x}", text)
    end = "" if text.endswith(("\n", ".", "?", "!")) else rng.choice(ends)
    return noisy(rng, text + end + (sentence(rng, _WORDS["thank"]) if rng.random() < 0.06 else ""))


_TURNED = re.compile(r"((?:what|which|where|who|when|how|(?:in|on) which)\b.*?) (is|are|was|were) (.+)")
_TAIL = re.compile(
    r"(.*) (made of|made from|made out of|used for|used in|called|famous for|known for|remembered for|named after|from"
    r"|about|born|played|spoken|written|good for|different|alike|by|in|on|part of|like)"
)
_SEVERAL = re.compile(
    r"(?:[?;]|\band)\s(?:what|which|who|where|when|how|why|in|on|is|are|do|does|did|can)\b", re.I
)
#: What "which ... is" asks for, where that is its subject.
_NOUNS = (
    "country|element|planet|animal|instrument|scientist|book|river|city|town|work|language|currency|money|dish|sight|landmark"
    "|person|one|of .+?"
)
_PERSONS = "I|you|one|people|they|we|tourists"
_MODAL = re.compile(rf"(.*?)\b(can|could|should|will|would|must) ({_PERSONS}) (.+)")


def clause(text: str) -> str | None:
    """A question as it stands after "I would like to know": "what X eats", "how X and Y differ"; None if it has no such
    form, or if it is several."""
    if _SEVERAL.search(text):
        return None
    if (match := _did().fullmatch(text)) is not None:
        asked, auxiliary, subject, verb, rest = match.groups()
        return f"{asked or 'whether '}{subject} {_inflected(verb, auxiliary)}{rest}"
    if (match := _MODAL.fullmatch(text)) is not None and match[1]:
        return f"{match[1]}{match[3]} {match[2]} {match[4]}"
    if _own_subject().match(text):
        return text
    if (match := _TURNED.fullmatch(text)) is None:
        return None
    asked, verb, rest = match.groups()
    tail = _TAIL.fullmatch(rest)
    return f"{asked} {tail[1]} {verb} {tail[2]}" if tail else f"{asked} {rest} {verb}"


@cache
def _did() -> re.Pattern[str]:
    return re.compile(rf"(.*?)\b(does|do|did) (.+?) ({'|'.join(_WORDS['verbs'])})\b(.*)")


@cache
def _own_subject() -> re.Pattern[str]:
    """Questions whose first words are their subject: "who wrote X", "which river is in X", "who was born first"."""
    forms = {_inflected(verb, auxiliary) for verb in _WORDS["verbs"] for auxiliary in ("does", "did")}
    verbs = "|".join(sorted(forms))
    return re.compile(
        rf"(?:who|what|which|(?:which|what|whose) (?:\w+|of .+?)) (?:{verbs})\b"
        rf"|(?:which|what) (?:{_NOUNS}) (?:is|are|was|were)\b"
        r"|(?:who|which) (?:is|was|were) (?:the|a|an|born|famous|known|remembered|behind|first|last|\w+est|\w+er)\b"
        r"|what (?:is|was) (?:the )?(?!number|writer|other)\w+(?:est|er)\b"
    )


def _inflected(verb: str, auxiliary: str) -> str:
    """The form of a verb that says what it says with an auxiliary: "does eat" is "eats"."""
    if auxiliary == "do":
        return verb
    if auxiliary == "did":
        return _WORDS["verbs"][verb] or (f"{verb}d" if verb.endswith("e") else f"{verb}ed")
    if verb == "have":
        return "has"
    return f"{verb}es" if verb.endswith(("s", "sh", "ch", "o")) else f"{verb}s"


def _gerund(text: str) -> str | None:
    first, _, rest = text.partition(" ")
    gerund = _WORDS["gerunds"].get(first)
    return gerund and f"{gerund} {rest}"
