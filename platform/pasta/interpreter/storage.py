"""Storage order: a response as one list of ids in which each chunk stands right after its promise."""

from collections.abc import Callable, Sequence

from pasta.interpreter.limits import ConstraintError
from pasta.interpreter.thread import Mode, Thread
from pasta.lang.grammar import ControlIds

#: Makes a thread emit a token; what it returns is not read.
Emit = Callable[[int, int], object]


def stored_ids(threads: Sequence[Thread], thread: int, async_open: int) -> list[int]:
    """Return a thread's tokens, each chunk's tokens right after its promise."""
    t = threads[thread]
    out: list[int] = []
    start = 0
    for before, child in t.children:
        out += t.tokens[start:before]
        out.append(async_open)
        out += stored_ids(threads, child, async_open)
        start = before
    return out + t.tokens[start:]


def drive(
    threads: Sequence[Thread],
    control: ControlIds,
    emit: Emit,
    thread: int,
    ids: Sequence[int],
) -> None:
    """Call ``emit`` with each token of ``thread`` and its descendants, given their ids in storage order.

    Raises ``ConstraintError`` if the ids are not one well-formed thread.
    """
    stack = [thread]
    expect_open = False
    for token in ids:
        if expect_open != (token == control.async_open) or not stack:
            raise ConstraintError(f"token {token} stands where {'<async>' if expect_open else 'none'} may")
        if expect_open:
            stack.append(threads[stack[-1]].children[-1][1])
            expect_open = False
            continue
        emit(stack[-1], token)
        expect_open = token == control.close
        if threads[stack[-1]].mode >= Mode.ENDED:
            stack.pop()
    if stack:
        raise ConstraintError("the ids end before their thread does")
