"""A chunk that is decoded elsewhere: what of its response's limits it may use there.

Tokens and threads are set aside when the chunk leaves, so that whatever comes back has room: the response goes
on meanwhile and cannot use them up.
"""

from dataclasses import replace

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.limits import Limits

#: A chunk may take twice its estimate and this much more (tags of chunks inside it included).
SLACK_TOKENS = 64
#: It should be handed back when no more than this is left of what it was lent: what it decodes must not depend
#: on where it is decoded, and near a limit it would.
MARGIN_TOKENS = 64
#: A chunk that leaves takes one in so many of the threads that are left.
_THREAD_SHARE = 4


def lend(interpreter: Interpreter, chunk: int) -> Limits | None:
    """Set aside what a chunk just forked needs elsewhere. Returns its limits there.

    ``None``, with nothing set aside, if that would take more than half of the tokens that are left.
    """
    limits, estimate = interpreter.limits, interpreter.threads[chunk].estimate
    tokens = min(limits.max_chunk_tokens, 2 * estimate + SLACK_TOKENS) + MARGIN_TOKENS
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
    interpreter.lent_threads += lent.max_threads - 1


def take_back(interpreter: Interpreter, chunk: int, lent: Limits) -> None:
    """The chunk, or what there is of it, comes in: what was set aside is free for its tokens."""
    interpreter.reserve(interpreter.threads[chunk], 1)
    interpreter.lent_threads -= lent.max_threads - 1
