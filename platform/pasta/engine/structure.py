"""Structured output: text that follows a JSON schema or a regular expression, by llguidance's token masks.

llguidance is imported on first use: who asks for no structure needs it not.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pasta.errors import UserError, first_line
from pasta.lang import Codec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Between two tokens of JSON: enough to indent, and no model can fill its answer with spaces.
_WHITESPACE = r"[ \n]{0,24}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer's text must follow: a JSON schema, as JSON, or a regular expression that matches all of it.

    ``param`` names it in messages.
    """

    kind: Literal["json_schema", "regex"]
    text: str
    param: str = field(default="grammar", compare=False)


class Structure:
    """A compiled grammar. Each answer has a ``Follower`` of its own."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def follower(self) -> "Follower":
        """Start at the grammar's beginning."""
        return Follower(self._matcher.deep_copy(), self._vocab_size)


class Follower:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._read = 0

    def allowed(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> npt.NDArray[np.bool_] | None:
        """Return which tokens [vocab] may follow the answer's ``tokens`` and ``drafts``; ends where the text may end.

        ``None`` if the drafts break the grammar: they are not emitted then.
        """
        new = list(tokens[self._read :])
        if new and not self._matcher.consume_tokens(new):
            raise ValueError(f"the grammar does not go on: {self._matcher.get_error()}")
        self._read = len(tokens)
        ahead = self._matcher.try_consume_tokens(list(drafts)) if drafts else 0
        try:
            if ahead < len(drafts):
                return None
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            return np.unpackbits(packed, count=self._vocab_size, bitorder="little").astype(np.bool_)
        finally:
            if ahead:
                self._matcher.rollback(ahead)


class Structures:
    """Compiles grammars for one tokenizer. Thread-safe: to compile takes up to a second."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self._lock = codec, threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self.compile = lru_cache(maxsize=64)(self._compile)

    def _compile(self, grammar: Grammar) -> Structure:
        """Compile a grammar. Raises ``UserError`` in one line if it is none, or too large, or says what llguidance
        cannot enforce."""
        from llguidance import LLMatcher

        try:
            if grammar.kind == "regex":
                source = LLMatcher.grammar_from_regex(grammar.text)
            else:
                overrides: Any = {"whitespace_pattern": _WHITESPACE}
                source = LLMatcher.grammar_from_json_schema(grammar.text, overrides=overrides)
        except ValueError as error:
            raise UserError(first_line(error)) from None
        matcher = LLMatcher(self._tokens(), source, log_level=0)
        if matcher.is_error():
            raise UserError(" ".join(matcher.get_error().split())[:300])
        return Structure(matcher, self._codec.grammar.vocab_size)

    def _tokens(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                backend = self._codec.backend_json()
                ends = sorted(self._codec.eos_ids)
                self._tokenizer = LLTokenizer(backend, n_vocab=self._codec.grammar.vocab_size, eos_token=ends)
            return self._tokenizer
