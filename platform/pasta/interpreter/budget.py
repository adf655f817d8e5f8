"""Counts the tokens of a response by what they are spent on."""

from collections import Counter
from collections.abc import Sequence

from pasta.interpreter.linearise import TokenKind, linearise
from pasta.lang.grammar import TagGrammar

#: Under which name each kind of token is counted. Both ends of a promise count as promise, and so does the given
#: ``<async>``.
_NAMES = {
    TokenKind.TEXT: "text",
    TokenKind.EOS: "text",
    TokenKind.PROMISE: "promise",
    TokenKind.CLOSE: "promise",
    TokenKind.TOPIC: "topic",
    TokenKind.ESTIMATE: "estimate",
    TokenKind.ASYNC_CLOSE: "async_end",
    TokenKind.SYNC: "sync",
}


def token_budget(grammar: TagGrammar, response_ids: Sequence[int]) -> dict[str, int]:
    """Tokens of a whole response (storage order, end-of-text last) by name of their kind; they add up to all of it.

    ``text`` counts text and end-of-text, which is what is left of a response without its tags. Raises
    ``ConstraintError`` if the response is not well-formed.
    """
    # Any token stands for the prompt: the first token of the response needs a row that predicts it.
    rows = linearise(grammar, [min(grammar.eos_ids)], response_ids)
    counts = Counter(_NAMES[TokenKind(kind)] for kind in rows.kinds if kind != TokenKind.NONE)
    if given := list(response_ids).count(grammar.control.async_open):
        counts["promise"] += given
    return dict(counts)
