"""Orders the text of a response for reading while its threads still decode, and cuts a response where its text ends."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pasta.interpreter.interpreter import Interpreter
from pasta.interpreter.thread import Fork, Thread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Chunk:
    thread: int


@dataclass(slots=True)
class _Thread(Generic[T]):
    parts: list[T | _Chunk] = field(default_factory=list)
    shown: int = 0
    finished: bool = False


class ReadingOrder(Generic[T]):
    """Collects the text of threads and returns it in reading order. A part may be of any type.

    The first unfinished chunk is returned as it comes; text behind it is held back until the chunk is done.
    """

    def __init__(self) -> None:
        self._threads: dict[int, _Thread[T]] = {0: _Thread()}
        self._stack = [0]

    def text(self, thread: int, part: T) -> None:
        """Add ``part`` to the text of ``thread``."""
        if part:
            self._threads[thread].parts.append(part)

    def fork(self, thread: int, child: int) -> None:
        """Put the text of ``child`` at this place of ``thread``."""
        self._threads[thread].parts.append(_Chunk(child))
        self._threads[child] = _Thread()

    def finish(self, thread: int) -> None:
        """Record that ``thread`` has written its last text."""
        self._threads[thread].finished = True

    def take_parts(self) -> list[T]:
        """Return the parts that can be shown now and were not returned before."""
        out: list[T] = []
        while self._stack:
            top = self._threads[self._stack[-1]]
            if top.shown < len(top.parts):
                part = top.parts[top.shown]
                top.shown += 1
                if isinstance(part, _Chunk):
                    self._stack.append(part.thread)
                else:
                    out.append(part)
            elif top.finished:
                self._stack.pop()
            else:
                break
        return out


def copy_until(interpreter: Interpreter, thread: int, count: int) -> Interpreter:
    """Copy a response up to the first ``count`` tokens of ``thread``, and without what is read after these.

    Chunks that are read before must have ended. The copy does not depend on how far other threads had come.
    """
    it = interpreter
    found = Interpreter(it.grammar, it.limits, it.prompt, parallel=it.parallel, strict=False)
    copies = {0: 0}

    def copied(t: Thread) -> bool:
        children = dict(t.children)
        for at, (token, time) in enumerate(zip(t.tokens, t.times, strict=True), start=1):
            for action in found.emit(copies[t.id], token, time):
                if isinstance(action, Fork):
                    copies[children[at]] = action.child
            if (t.id, at) == (thread, count):
                return True
            if at in children and copied(it.threads[children[at]]):
                return True
        return False

    copied(it.threads[0])
    return found
