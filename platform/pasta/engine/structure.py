"""Structured output: text that follows a JSON schema or a regular expression, by llguidance's token masks.

llguidance is imported on first use: requests without a structure do not need it.
"""

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from pasta.errors import UserError, first_line
from pasta.lang import Codec
from pasta.messages import message

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")

#: Between two tokens of JSON: a space, or a new line with its indentation. A model that was not trained on JSON would
#: fill its answer with all the white space that it may write.
_WHITESPACE = r"( |\n {0,24})?"
#: The longest grammar, in characters: to compile takes up to seconds for each million.
MAX_CHARS = 100_000
#: The largest common multiple of a schema's ``multipleOf``, in units of their last decimal place. llguidance builds an
#: automaton with as many states, whatever its own limits are.
MAX_MULTIPLE = 10_000
#: The most ``patternProperties`` of a schema: llguidance compares each pattern with each other one, 7 s for 300.
MAX_PATTERNS = 64
#: Instead of llguidance's message, which names an option of its own.
_ONE_OF = (
    "oneOf: a value may match several of its schemas, which cannot be ruled out; write anyOf, or schemas that no value "
    "has in common, such as of different types, or with a required property of different const"
)


@message
class Grammar:
    """What an answer's text must follow: a JSON schema, as JSON, or a regular expression that matches all of it.

    ``param`` names it in messages.
    """

    kind: Literal["json_schema", "regex"]
    text: str
    param: str = field(default="grammar", compare=False)


class Structure:
    """A compiled grammar. Each answer has a ``GrammarMatcher`` of its own."""

    def __init__(self, matcher: "LLMatcher", codec: Codec) -> None:
        self._matcher, self._codec = matcher, codec

    def matcher(self) -> "GrammarMatcher":
        """Start at the grammar's beginning."""
        return GrammarMatcher(self._matcher.deep_copy(), self._codec)


class GrammarMatcher:
    """One answer's place in its grammar.

    Where the grammar leaves one text only, llguidance allows the first token of that text alone, and encodes it with
    special-token parsing on. Our text never becomes a special token: the codec spells it.
    """

    def __init__(self, matcher: "LLMatcher", codec: Codec) -> None:
        self._matcher, self._codec, self._vocab_size = matcher, codec, codec.grammar.vocab_size
        self._read = 0
        #: Why the grammar allows nothing more; empty while it does.
        self.error = ""

    def allowed(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> npt.NDArray[np.bool_] | None:
        """Return which tokens [vocab] may follow the answer's ``tokens`` and ``drafts``; ends where the text may end.

        ``None`` if the drafts break the grammar: they are not emitted then. No token may follow once the grammar has
        failed, for instance at one of llguidance's limits: ``error`` says why.
        """
        self._follow(tokens)
        ahead = self._matcher.try_consume_tokens(list(drafts)) if drafts else 0
        try:
            if ahead < len(drafts):
                return None
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            if self._matcher.is_error():
                self.error = f"the grammar does not go on: {_said(self._matcher)}"
                return np.zeros(self._vocab_size, dtype=np.bool_)
            mask = np.unpackbits(packed, count=self._vocab_size, bitorder="little").astype(np.bool_)
            if np.count_nonzero(mask) == 1 and not self._matcher.is_accepting():
                (only,) = np.flatnonzero(mask)
                mask[only], mask[self._spelled(int(only))[0]] = False, True
            return mask
        finally:
            if ahead:
                self._matcher.rollback(ahead)

    def following(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that spell what the grammar leaves no choice about after the answer's ``tokens``. A model may
        spell it by others."""
        self._follow(tokens)
        return [own for token in self._matcher.compute_ff_tokens() for own in self._spelled(token)]

    def _spelled(self, token: int) -> list[int]:
        """The tokens of the text of ``token``: itself unless it is special."""
        if token not in self._codec.special_ids:
            return [token]
        return self._codec.encode_text(self._codec.decode_text([token]))

    def _follow(self, tokens: Sequence[int]) -> None:
        new = list(tokens[self._read :])
        if new:
            self._matcher.consume_tokens(new)
        self._read = len(tokens)


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

        if len(grammar.text) > MAX_CHARS:
            raise UserError(f"{len(grammar.text)} characters, expected at most {MAX_CHARS}")
        if grammar.kind == "json_schema":
            schema = json.loads(grammar.text)
            _check_multiples(schema)
            if (patterns := sum(map(len, _values(schema, "patternProperties", dict)))) > MAX_PATTERNS:
                raise UserError(f"patternProperties: {patterns} patterns, expected at most {MAX_PATTERNS}")
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
            raise UserError(_said(matcher))
        return Structure(matcher, self._codec)

    def _tokens(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                backend = self._codec.backend_json()
                ends = sorted(self._codec.eos_ids)
                self._tokenizer = LLTokenizer(backend, n_vocab=self._codec.grammar.vocab_size, eos_token=ends)
            return self._tokenizer


def _said(matcher: "LLMatcher") -> str:
    """A matcher's error in one line, without what llguidance says of its own state and options."""
    said = " ".join(re.split("<backtrace>|<state>", matcher.get_error())[0].split())[:300]
    return _ONE_OF if "coerce_one_of" in said else said


def _check_multiples(schema: Any) -> None:
    """Raise ``UserError`` if a schema's ``multipleOf`` would take long to compile."""
    multiples = [*_values(schema, "multipleOf", int), *_values(schema, "multipleOf", float)]
    found = [Decimal(str(value)) for value in multiples if not isinstance(value, bool)]
    exponents = [each.normalize().as_tuple().exponent for each in found if each > 0 and each.is_finite()]
    places = max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)
    common = 1
    for each in found:
        if each > 0 and each.is_finite():
            common = math.lcm(common, int(each.scaleb(max(places, 0))))
        if common > MAX_MULTIPLE:
            raise UserError(
                f"multipleOf: the common multiple of all of them is above {MAX_MULTIPLE} of their last decimal place, "
                "which is not supported"
            )


def _values(schema: Any, key: str, kind: type[T]) -> Iterator[T]:
    """Every value of a key, anywhere in a schema, that is of a kind."""
    rest = [schema]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            if isinstance(value := each.get(key), kind):
                yield value
            rest += each.values()
        elif isinstance(each, list):
            rest += each
