"""Turns a document into training rows: storage order, with positions, segments and targets.

An :class:`Interpreter` is driven over the document, so that tags mean the same in training as in decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.limits import UNBOUNDED, Constraint, Limits
from pasta.lang.grammar import TagGrammar

IGNORE = -100


class TokenKind(IntEnum):
    """The kind of a target token: losses are reported by kind."""

    NONE = 0
    TEXT = 1
    PROMISE = 2
    TOPIC = 3
    ESTIMATE = 4
    CLOSE = 5
    ASYNC_CLOSE = 6
    SYNC = 7
    EOS = 8


@dataclass(frozen=True, slots=True)
class Linearised:
    """Parallel lists of length T (prompt and response), and the visibility bitmask of each segment.

    ``targets[i]`` is what the logits of row i predict, or -100; ``kinds[i]`` is that target's kind. ``predicted_by[i]``
    is the row whose logits predict token i, or -1 for a token that is given.
    """

    token_ids: list[int]
    positions: list[int]
    segments: list[int]
    targets: list[int]
    kinds: list[int]
    sees: list[int]
    predicted_by: list[int]


def linearise(grammar: TagGrammar, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> Linearised:
    """Linearise a response in storage order that ends with end-of-text.

    Raises ``ConstraintError`` if it is not well-formed. A thread's row predicts the thread's next token: a
    promise's ``/>`` its parent's, ``<async>`` the chunk's first; ``</async>`` predicts nothing.
    """
    interpreter = Interpreter(grammar, UNBOUNDED, prompt_ids, strict=False)
    interpreter.drive(0, response_ids)
    feeds = interpreter.take_feeds()
    ids = [*prompt_ids, *(feed.token for feed in feeds)]
    targets = [IGNORE] * len(ids)
    kinds = [int(TokenKind.NONE)] * len(ids)
    predicted_by = [-1] * len(ids)
    last_row = {0: len(prompt_ids) - 1}
    for row, feed in enumerate(feeds, start=len(prompt_ids)):
        previous = last_row.get(feed.thread, -1)
        if previous >= 0:
            targets[previous] = feed.token
            predicted_by[row] = previous
            kinds[previous] = int(_kind(grammar, feed.token))
        last_row[feed.thread] = row
    _mark_tags(grammar, ids, targets, kinds)
    return Linearised(
        token_ids=ids,
        positions=[*range(len(prompt_ids)), *(feed.position for feed in feeds)],
        segments=[*([0] * len(prompt_ids)), *(feed.segment for feed in feeds)],
        targets=targets,
        kinds=kinds,
        sees=list(interpreter.sees),
        predicted_by=predicted_by,
    )


def chosen_among(
    grammar: TagGrammar, limits: Limits, prompt_ids: Sequence[int], response_ids: Sequence[int]
) -> list[Constraint | None]:
    """What each token of a response in storage order was chosen among; None for a token that is given (``<async>``).

    ``limits.max_tokens`` is left out: it is reached in the order of time, and ends an answer that is then cut. Raises
    ``ConstraintError`` for a response that is not well-formed.
    """
    unbounded = replace(limits, max_tokens=UNBOUNDED.max_tokens)
    interpreter = Interpreter(grammar, unbounded, prompt_ids, strict=False)
    chosen: list[Constraint] = []

    def emit(thread: int, token: int) -> None:
        chosen.append(interpreter.allowed(thread))
        interpreter.emit(thread, token)

    interpreter.drive(0, response_ids, emit)
    constraints = iter(chosen)
    given = grammar.control.async_open
    return [None if token == given else next(constraints) for token in response_ids]


def _kind(grammar: TagGrammar, token: int) -> TokenKind:
    control = grammar.control
    return {
        control.promise: TokenKind.PROMISE,
        control.close: TokenKind.CLOSE,
        control.async_close: TokenKind.ASYNC_CLOSE,
        control.sync: TokenKind.SYNC,
        **dict.fromkeys(grammar.eos_ids, TokenKind.EOS),
    }.get(token, TokenKind.TEXT)


def _mark_tags(grammar: TagGrammar, ids: Sequence[int], targets: Sequence[int], kinds: list[int]) -> None:
    """Mark topic and estimate tokens, which would pass for text: a tag's rows are adjacent in storage order."""
    row = 0
    while row < len(ids):
        if ids[row] == grammar.control.promise:
            kind = TokenKind.TOPIC
            topic_from = row + 1 + len(grammar.open_ids)
            while ids[row] != grammar.control.close:
                if row > topic_from - 1 and targets[row] in grammar.tail.children:
                    kind = TokenKind.ESTIMATE
                if targets[row] != grammar.control.close:
                    kinds[row] = int(kind)
                row += 1
        row += 1
