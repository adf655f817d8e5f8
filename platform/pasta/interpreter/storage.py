"""Storage order: a response as one list of ids in which each chunk stands right after its promise."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta.interpreter.limits import ConstraintError
from pasta.interpreter.thread import Action, Mode, Thread

if TYPE_CHECKING:
    from pasta.interpreter.interpreter import Interpreter


def stored_ids(threads: Sequence[Thread], thread: int, async_open: int) -> list[int]:
    """A thread's tokens with those of its descendants in their places."""
    t = threads[thread]
    out: list[int] = []
    start = 0
    for before, child in t.children:
        out += t.tokens[start:before]
        out.append(async_open)
        out += stored_ids(threads, child, async_open)
        start = before
    return out + t.tokens[start:]


def drive(interpreter: "Interpreter", thread: int, ids: Sequence[int], time: float) -> tuple[Action, ...]:
    """Emit a thread's whole response from its ids in storage order; see ``Interpreter.drive``."""
    control = interpreter.grammar.control
    actions: list[Action] = []
    stack = [thread]
    expect_open = False
    for token in ids:
        if expect_open != (token == control.async_open) or not stack:
            raise ConstraintError(f"token {token} stands where {'<async>' if expect_open else 'none'} may")
        if expect_open:
            stack.append(interpreter.threads[stack[-1]].children[-1][1])
            expect_open = False
            continue
        actions += interpreter.emit(stack[-1], token, time)
        expect_open = token == control.close
        if interpreter.threads[stack[-1]].mode >= Mode.ENDED:
            stack.pop()
    if stack:
        raise ConstraintError("the ids end before their thread does")
    return tuple(actions)
