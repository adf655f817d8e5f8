"""Decodes one thread's token ids to text incrementally."""

from functools import lru_cache

from pasta.lang.codec import Codec
from pasta.lang.tokenizer import CodecError

# A character has at most four bytes: after so many tokens without one, the bytes are no character.
_LONGEST_WAIT = 8


class TextStream:
    """Decodes one thread's token ids incrementally and never returns half a character."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        # The window starts with the ids of the last text given out, as context: some tokenizers decode a
        # piece differently at the start of a text, and a run of byte tokens must not be cut in a character.
        self._window: list[int] = []
        self._num_shown = 0
        self._shown = ""

    def push(self, token: int) -> str:
        """Add a token; returns the text that it completes, empty while a character is incomplete."""
        self._window.append(token)
        text = self._codec.decode_text(self._window)
        half = text.endswith("\ufffd") and not self._ends_in_written()
        incomplete = half or len(text) == len(self._shown)  # some tokenizers drop half a character
        if incomplete and len(self._window) - self._num_shown < _LONGEST_WAIT:
            return ""
        new = text[len(self._shown) :]
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown = self._text_of_window()
        return new

    def _ends_in_written(self) -> bool:
        written = _written_replacement(self._codec)
        return bool(written) and self._window[-len(written) :] == written

    def _text_of_window(self) -> str:
        if self._num_shown > 1:
            return self._codec.decode_text(self._window)
        (token,), known = self._window, self._codec.token_texts
        if token not in known:
            known[token] = self._codec.decode_text(self._window)
        return known[token]

    def flush(self) -> str:
        """Return the rest of the text at the end of a thread (U+FFFD for incomplete characters)."""
        new = self._codec.decode_text(self._window)[len(self._shown) :] if self._window else ""
        self._window, self._num_shown, self._shown = [], 0, ""
        return new


@lru_cache(maxsize=32)
def _written_replacement(codec: Codec) -> list[int]:
    """The ids of a U+FFFD that a text holds, which stands for no half of a character; none if they are not known."""
    try:
        return codec.encode_text("\ufffd")
    except CodecError:  # to the tokenizer it is an unknown character
        return []
