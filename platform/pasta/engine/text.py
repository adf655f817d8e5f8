"""The text of an answer that a stop string or a stop token may end, while it decodes, in reading order."""

from typing import NamedTuple

from pasta.engine.request import SamplingParams
from pasta.interpreter import Mode, ReadingOrder, Thread
from pasta.lang import Codec, TextStream


class _Piece(NamedTuple):
    """Text that a thread's token ``number`` (from 1) has completed; ``ends`` if that token ends the answer, ``is_text``
    if it is one of text."""

    text: str
    thread: int
    number: int
    ends: bool
    is_text: bool


class AnswerText:
    """``shown`` is the text up to the first chunk that is not finished; ``stopped_at`` where the answer ends in it, and
    ``ended_by`` the token that ends it: a thread, and the number of its tokens with that one.

    It is read token by token, whatever was decoded together. So where it ends does not depend on that.
    """

    def __init__(self, codec: Codec, params: SamplingParams) -> None:
        self._codec = codec
        self._strings = params.stop
        self._min_tokens, self._num_read = params.min_tokens, 0
        self._tokens = frozenset(params.stop_token_ids)
        self._reading: ReadingOrder[_Piece] = ReadingOrder()
        self._streams: dict[int, TextStream] = {0: TextStream(codec)}
        self.shown = ""
        self.stopped_at: int | None = None
        self.ended_by: tuple[int, int] | None = None

    def fork(self, thread: int, child: int) -> None:
        """Put the text of ``child`` at this place of ``thread``."""
        self._reading.fork(thread, child)
        self._streams[child] = TextStream(self._codec)

    def add(self, thread: Thread, token: int) -> None:
        """Add the token that ``thread`` has just emitted."""
        control, stream, text = self._codec.control, self._streams[thread.id], ""
        in_text = thread.mode == Mode.TEXT and token not in (control.close, control.sync)
        ends = in_text and token in self._tokens
        if thread.mode >= Mode.ENDED or ends or token in (control.promise, control.sync):
            text = stream.flush()
        elif in_text:
            text = stream.push(token)
        if text or ends or in_text:
            self._reading.text(thread.id, _Piece(text, thread.id, len(thread.tokens), ends, in_text))
        if thread.mode >= Mode.ENDED:
            self._reading.finish(thread.id)
        for piece in self._reading.take_parts():
            self._show(piece)

    def _show(self, piece: _Piece) -> None:
        if self.ended_by is not None:
            return
        before = len(self.shown)
        self.shown += piece.text
        self._num_read += piece.is_text
        strings = self._strings if self._num_read > self._min_tokens else ()
        found = [self.shown.find(stop, max(0, before - len(stop) + 1)) for stop in strings]
        ends = [at for at in found if at >= 0] or ([len(self.shown)] if piece.ends else [])
        if ends:
            self.stopped_at, self.ended_by = min(ends), (piece.thread, piece.number)
