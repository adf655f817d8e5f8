"""The text of an answer while it decodes, in reading order, and where a stop string or a stop token ends it."""

from collections.abc import Sequence

from pasta.engine.request import SamplingParams
from pasta.interpreter import Mode, ReadingOrder
from pasta.lang import Codec, TextStream


class _Stop:
    """A token in the text that ends the answer."""


class AnswerText:
    """``shown`` is the text up to the first chunk that is not finished; ``stopped_at`` where the answer ends in it.

    Without ``stops`` nothing of ``params`` ends it.
    """

    def __init__(self, codec: Codec, params: SamplingParams, *, stops: bool) -> None:
        self._codec, self._stops = codec, stops
        self._strings = params.stop if stops else ()
        self._tokens = frozenset(params.stop_token_ids if stops else ())
        self._reading: ReadingOrder[str | _Stop] = ReadingOrder()
        self._streams: dict[int, TextStream] = {0: TextStream(codec)}
        self.shown = ""
        self.stopped_at: int | None = None

    def fork(self, thread: int, child: int) -> None:
        """Put the text of ``child`` at this place of ``thread``."""
        self._reading.fork(thread, child)
        self._streams[child] = TextStream(self._codec)

    def add(self, thread: int, token: int, mode: Mode) -> str:
        """Add a token, after which ``thread`` is in ``mode``; returns the text that it completes."""
        control, stream, text = self._codec.control, self._streams[thread], ""
        if mode >= Mode.ENDED or token in (control.promise, control.sync):
            text = stream.flush()
        elif mode == Mode.TEXT and token != control.close:
            text = self._push(thread, token)
        self._reading.text(thread, text)
        if mode >= Mode.ENDED:
            self._reading.finish(thread)
        self._show()
        return text

    def add_chunk(self, thread: int, response_ids: Sequence[int]) -> None:
        """Add a whole chunk: its ids in storage order, which is reading order."""
        control, inside = self._codec.control, False
        for token in response_ids:
            inside = token == control.promise or (inside and token != control.close)
            text = token not in control.as_tuple()
            if not inside or not text:
                self._reading.text(
                    thread, self._push(thread, token) if text else self._streams[thread].flush()
                )
        self._reading.finish(thread)
        self._show()

    def _push(self, thread: int, token: int) -> str:
        if token not in self._tokens:
            return self._streams[thread].push(token)
        self._reading.text(thread, self._streams[thread].flush())
        self._reading.text(thread, _Stop())
        return ""

    def _show(self) -> None:
        before, ended = len(self.shown), None
        for part in self._reading.take_parts():
            if isinstance(part, str):
                self.shown += part
            elif ended is None:
                ended = len(self.shown)
        if self.stopped_at is None and self._stops:
            found = [self.shown.find(stop, max(0, before - len(stop) + 1)) for stop in self._strings]
            self.stopped_at = min((at for at in (*found, ended) if at is not None and at >= 0), default=None)
