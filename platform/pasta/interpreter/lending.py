"""Lends a part of a response's limits to a chunk that another engine decodes.

Tokens and threads are reserved when the chunk leaves: the response goes on meanwhile and must not use up what the
chunk will need when it comes back. The reservation must not change the text either. While there is one, a thread's
next token is chosen as if the limits were infinite (``allowed_freely``). If the limits do not allow that token, the
thread waits until the lent part has come back. A chunk that itself has only a lent part is given back to its lender.

Not covered: an answer that reaches ``max_threads`` or ``max_tokens``. A chunk that is away may still fork, while
another thread takes the last place that it would have had first. And a chunk may come back, whole, before other threads
are as far: it has tokens then that ``max_tokens`` would have left to these.
"""

from collections.abc import Sequence
from dataclasses import replace

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.limits import Constraint, ConstraintError, Limits
from pasta.interpreter.storage import Emit

#: A chunk is lent twice its estimate plus this many tokens, and as many again for chunks inside it.
SLACK_TOKENS = 64
#: A chunk is lent 1/16 of the threads that are left, for chunks inside it: few chunks have any.
_THREAD_SHARE = 16
#: As many as ``Limits`` takes.
_ENOUGH = 1 << 30


def lend(interpreter: Interpreter, chunk: int) -> Limits | None:
    """Reserve what a chunk just forked needs on another engine; returns its limits there.

    Returns ``None`` and reserves nothing if that would take more than half of the tokens that are left.
    """
    limits, estimate = interpreter.limits, interpreter.threads[chunk].estimate
    tokens = min(limits.max_chunk_tokens, 2 * estimate + SLACK_TOKENS) + SLACK_TOKENS
    if tokens > interpreter.tokens_left // 2:
        return None
    lent = replace(
        limits, max_tokens=tokens, max_threads=1 + max(0, interpreter.threads_left) // _THREAD_SHARE
    )
    set_aside(interpreter, chunk, lent)
    return lent


def set_aside(interpreter: Interpreter, chunk: int, lent: Limits) -> None:
    """Reserve the limits that were lent to a chunk."""
    # Its <async> is counted here already.
    interpreter.reserve(interpreter.threads[chunk], lent.max_tokens - 1)
    interpreter.lent_tokens += lent.max_tokens - 2
    interpreter.lent_threads += lent.max_threads - 1


def take_back(interpreter: Interpreter, chunk: int, lent: Limits) -> None:
    """Release the reservation of a chunk that comes back, whole or in part: its tokens need the room."""
    interpreter.reserve(interpreter.threads[chunk], 1)
    interpreter.lent_tokens -= lent.max_tokens - 2
    interpreter.lent_threads -= lent.max_threads - 1


def drive_lent(interpreter: Interpreter, chunk: int, ids: Sequence[int], emit: Emit) -> None:
    """``Interpreter.drive`` for a chunk that another engine has decoded within what it was lent.

    How near a limit comes depends on the order of tokens, and in that of storage it may come nearer: so limits are
    checked at the end only. Raises ``ConstraintError`` if the chunk does not keep them.
    """
    strict, interpreter.strict = interpreter.strict, False
    try:
        interpreter.drive(chunk, ids, emit)
    finally:
        interpreter.strict = strict
    if strict and (interpreter.tokens_left < 0 or interpreter.threads_left < 0):
        raise ConstraintError(f"chunk {interpreter.threads[chunk].path} is longer than what it was lent")


def allowed_freely(interpreter: Interpreter, thread: int) -> Constraint:
    """Return what ``thread`` may emit next if tokens and threads were unlimited."""
    limits = interpreter.limits
    interpreter.limits = replace(limits, max_tokens=_ENOUGH, max_threads=_ENOUGH)
    try:
        return interpreter.allowed(thread)
    finally:
        interpreter.limits = limits
