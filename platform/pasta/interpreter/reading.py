"""Text in reading order: what of a response may be shown while its threads still decode."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Thread:
    parts: list[str | int] = field(default_factory=list)
    shown: int = 0
    finished: bool = False


class ReadingOrder:
    """Gathers threads' text and gives it out in reading order.

    The first unfinished chunk is given out live; text behind it is held back until it is done.
    """

    def __init__(self, main: int = 0) -> None:
        self._threads: dict[int, _Thread] = {main: _Thread()}
        self._stack = [main]

    def text(self, thread: int, text: str) -> None:
        """``thread`` wrote ``text``."""
        if text:
            self._threads[thread].parts.append(text)

    def fork(self, thread: int, child: int) -> None:
        """``child``'s text belongs at this place of ``thread``."""
        self._threads[thread].parts.append(child)
        self._threads[child] = _Thread()

    def finish(self, thread: int) -> None:
        """``thread`` has written its last text."""
        self._threads[thread].finished = True

    def take(self) -> str:
        """The text that can be shown now and was not given out before."""
        out: list[str] = []
        while self._stack:
            top = self._threads[self._stack[-1]]
            if top.shown < len(top.parts):
                part = top.parts[top.shown]
                top.shown += 1
                if isinstance(part, str):
                    out.append(part)
                else:
                    self._stack.append(part)
            elif top.finished:
                self._stack.pop()
            else:
                break
        return "".join(out)
