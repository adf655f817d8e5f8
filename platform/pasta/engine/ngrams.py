"""Looks up tokens that may follow. Answers repeat their prompt and themselves, and chunks of one answer are alike."""

from collections.abc import Iterable, Sequence

from pasta.interpreter import Thread

#: Lengths of the contexts that are looked up, longest first.
CONTEXTS = (4, 3, 2)


class Ngrams:
    """Where each short sequence of tokens occurred last: in the prompt, or in the text of any thread."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._found: dict[tuple[int, ...], tuple[Sequence[int], int]] = {}
        self._prompt = prompt
        self._read: dict[int, int] = {}  # of each thread, by id: tokens that have been read

    def read(self, threads: Iterable[Thread]) -> None:
        """Read what the threads have written since the last call."""
        if not self._read:
            self._add(self._prompt, 0)
        for t in threads:
            read = self._read.get(t.id, 0)
            if read < len(t.tokens):
                self._add(t.tokens, read)
                self._read[t.id] = len(t.tokens)

    def following(self, t: Thread, most: int) -> tuple[list[int], int]:
        """Return up to ``most`` tokens that followed the last occurrence of a thread's last tokens, and the length of
        the match."""
        context = t.tokens[-CONTEXTS[0] :]
        if t.parent is None and not t.is_chunk:
            context = [*self._prompt[-CONTEXTS[0] :], *context]
        for length in CONTEXTS:
            if length <= len(context) and (found := self._found.get(tuple(context[-length:]))):
                tokens, at = found
                return list(tokens[at : at + most]), length
        return [], 0

    def _add(self, tokens: Sequence[int], first: int) -> None:
        for at in range(first, len(tokens)):
            for length in CONTEXTS:
                if at >= length:
                    self._found[tuple(tokens[at - length : at])] = tokens, at
