"""Lets threads emit several tokens in a step without a change to the response.

One token a step for every thread is *lockstep*: the tokens come in the order of (``clock``, depth-first order of the
threads, a parent before its children, later children first). A thread's next token depends on other threads only
through the limits that all of them share, ``max_tokens`` and ``max_threads``. So a thread may emit before those that
lockstep has first as long as these limits are too far away to matter, whatever the others do until they catch up.
Near a limit each token waits for its turn, and the order is lockstep's.
"""

import copy
import functools
from collections.abc import Container, Sequence
from dataclasses import replace

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.limits import ConstraintError
from pasta.interpreter.thread import Mode, Path, Thread


def turn(thread: Thread) -> tuple[int, tuple[int, ...]]:
    """Return the sort key of a thread's next token in lockstep."""
    return thread.clock, _depth_first(thread.path)


@functools.lru_cache(maxsize=4096)
def _depth_first(path: Path) -> Path:
    """The sort key of a thread's place: a parent before its children, later children first."""
    return tuple(-child for child in path)


def forced_token(interpreter: Interpreter, thread: int) -> int | None:
    """Return the token of a promise that ``thread`` emits next whatever the model says; ``None`` if it has a choice.

    In text there is none: an end that a limit forces is a step like any other.
    """
    t = interpreter.threads[thread]
    if t.mode == Mode.TEXT or not t.running:
        return None
    constraint = interpreter.allowed(thread)
    if constraint.base == "none" and len(constraint.extra) == 1:
        return next(iter(constraint.extra))
    return None


def supposed(interpreter: Interpreter, thread: int) -> Interpreter:
    """A copy in which ``thread`` may emit what is only supposed, up to the end of a promise; the original stays as it
    is. What ends the thread or has it wait has no place in the copy, which shares the other threads."""
    found = copy.copy(interpreter)
    t = interpreter.threads[thread]
    found.threads, found.sees = [*interpreter.threads], [*interpreter.sees]
    found.threads[thread] = replace(
        t,
        tokens=[*t.tokens],
        positions=[*t.positions],
        segments=[*t.segments],
        steps=[*t.steps],
        times=[*t.times],
        children=[*t.children],
        outstanding=[*t.outstanding],
    )
    found.take_feeds()
    return found


def may_emit(interpreter: Interpreter, thread: int, apart: Container[int] = (), spent: int = 0) -> bool:
    """Whether ``thread`` may emit its next token now, or when ``spent`` tokens more have been emitted; if not, it waits
    for the threads before it.

    One running thread always may: the first in turn. Nobody waits for the threads ``apart``, which have limits of their
    own: another engine decodes them, and what they may use up is reserved.

    Why the response stays the same. A thread's constraint depends on shared limits only in text, and not while one
    promise more fits (``cost`` tokens and one thread): then it is the same however much more there is. So it suffices
    that in lockstep, and here, one promise more fits whenever a thread *behind* (one before ``thread`` in turn) or
    ``thread`` itself chooses. What the two differ by:

    - What the threads behind may still use up before this token's turn. A thread that is ``gap`` steps behind
      becomes several lines of execution: one that ends hands its line on to a parent that waits, and a fork adds one.
      A promise has at least ``shortest`` tokens, so lines double at most every ``shortest`` steps. A line uses one
      token a step, two more for each chunk (its ``<async>`` and its end), and ``cost`` for one open promise; it
      takes a thread for each fork and for its open promise.
    - What this token itself may use up: a promise.
    - What threads have given back that lockstep still reserves: closing a promise frees the part of its reservation
      that it did not need. At most one promise of each thread was open at any one time.

    Within a promise, before it closes, neither the constraint nor what is left of the limits changes.
    """
    threads = interpreter.threads
    t = threads[thread]
    if t.mode not in (Mode.TEXT, Mode.CLOSE):
        return True
    now = turn(t)
    behind = [
        u
        for u in threads
        if u.clock <= t.clock and u.running and u.id not in apart and (u.clock < t.clock or turn(u) < now)
    ]
    if not behind:
        return True
    grammar = interpreter.grammar
    cost = grammar.tag_overhead + interpreter.limits.max_topic_tokens + 2
    shortest = len(grammar.open_ids) + 4  # <promise, OPEN, a token of topic, one of TAIL, />
    slowest = min(u.clock for u in behind)
    closed = sum(bool(u.children) and u.steps[u.children[-1][0] - 1] > slowest for u in threads)
    need_tokens, need_threads = (closed + 2) * cost, 2
    for u in behind:
        gap = t.clock - u.clock + 1
        begun = 0 if u.mode == Mode.TEXT else shortest - 1
        lines = 2 ** ((gap + begun) // shortest)
        need_tokens += lines * (gap + cost + 2)
        need_threads += 2 * lines
    return interpreter.tokens_left - spent >= need_tokens and interpreter.threads_left >= need_threads


def may_emit_text(
    interpreter: Interpreter, threads: Sequence[int], count: int, apart: Container[int] = ()
) -> bool:
    """Whether each of these threads, which are in text, may emit ``count`` tokens of text one after another, while
    neither what they may emit nor the order of turns matters: every limit is further away than a promise."""
    spent, detection = count * len(threads), interpreter.limits.repetition_detection
    for thread in threads:
        t = interpreter.threads[thread]
        if t.mode != Mode.TEXT or interpreter.room(t) - spent < interpreter.promise_span:
            return False
        # What may follow the last of them is looked at anyway.
        if detection.within(t.tokens, count - 1) or detection.promised(t, interpreter.threads):
            return False
        if not may_emit(interpreter, thread, apart, spent):
            return False
    return True


def emit_text(interpreter: Interpreter, thread: int, tokens: Sequence[int], times: Sequence[float]) -> None:
    """What ``Interpreter.emit`` does for tokens of text one after another, which have been fed already, where
    ``may_emit_text``. Raises ``ConstraintError`` for a token that is no text."""
    t, mask = interpreter.threads[thread], interpreter.grammar.text_mask
    for token in tokens:
        if not (0 <= token < len(mask) and mask[token]):
            raise ConstraintError(f"token {token} has no place in the text of thread {thread}")
    count = len(tokens)
    t.tokens += tokens
    t.positions += range(t.next_position, t.next_position + count)
    t.segments += [t.segment] * count
    t.steps += range(t.clock + 1, t.clock + 1 + count)
    t.times += times
    t.clock += count
    t.next_position += count
    interpreter.num_tokens += count
