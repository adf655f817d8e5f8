"""A chunk that is decoded elsewhere: what of its response's limits it may use there.

Tokens and threads are set aside when the chunk leaves, so that whatever comes back has room: the response goes
on meanwhile and cannot use them up. Nor may what is set aside show in the text: while something is, a thread's next
token is chosen as if there were enough of everything (``allowed_freely``). If there is not enough for it, the thread
waits until what was lent has come back, or, where it was lent to itself, is handed back to those who have more.
"""

from dataclasses import replace

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.limits import Constraint, Limits

#: A chunk may take twice its estimate and this much more, and chunks inside it this much.
SLACK_TOKENS = 64
#: A chunk that leaves takes one in so many of the threads that are left, for chunks inside it: few have any.
_THREAD_SHARE = 16
_ENOUGH = 1 << 60


def lend(interpreter: Interpreter, chunk: int) -> Limits | None:
    """Set aside what a chunk just forked needs elsewhere. Returns its limits there.

    ``None``, with nothing set aside, if that would take more than half of the tokens that are left.
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
    """Keep free what a chunk that decodes elsewhere was lent."""
    # Its <async> is counted here already.
    interpreter.reserve(interpreter.threads[chunk], lent.max_tokens - 1)
    interpreter.lent_tokens += lent.max_tokens - 2
    interpreter.lent_threads += lent.max_threads - 1


def take_back(interpreter: Interpreter, chunk: int, lent: Limits) -> None:
    """The chunk, or what there is of it, comes in: what was set aside is free for its tokens."""
    interpreter.reserve(interpreter.threads[chunk], 1)
    interpreter.lent_tokens -= lent.max_tokens - 2
    interpreter.lent_threads -= lent.max_threads - 1


def allowed_freely(interpreter: Interpreter, thread: int) -> Constraint:
    """What ``thread`` may emit next if its response has tokens and threads enough."""
    limits = interpreter.limits
    interpreter.limits = replace(limits, max_tokens=_ENOUGH, max_threads=_ENOUGH)
    try:
        return interpreter.allowed(thread)
    finally:
        interpreter.limits = limits
