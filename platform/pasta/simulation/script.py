"""An answer with known tokens, which a replica decodes by forcing them, as the engine's replay does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pasta.interpreter import UNBOUNDED, Interpreter, Path
from pasta.lang.grammar import TagGrammar


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One answer to decode: ``tokens`` of each thread, ``<async>`` left out.

    ``plain_tokens`` is the length of the same answer without tags, end-of-text included, whichever way it is
    decoded. Without ``parallel`` the main thread decodes all of it. ``tags`` are the places of each thread's tokens
    that are no text, its end among them.
    """

    grammar: TagGrammar
    prompt_tokens: int
    plain_tokens: int
    parallel: bool
    tokens: Mapping[Path, Sequence[int]]
    tags: Mapping[Path, Sequence[int]]

    @classmethod
    def of(
        cls, grammar: TagGrammar, prompt_tokens: int, plain: Sequence[int], annotated: Sequence[int] | None
    ) -> "Script":
        """Make a script from the token ids of the plain and, in storage order, of the annotated answer, end-of-text
        last.

        Without ``annotated`` it is decoded one token after another. Raises ``ConstraintError`` for ids that are no
        answer.
        """
        reader = Interpreter(grammar, UNBOUNDED, (), parallel=annotated is not None, strict=False)
        reader.drive(0, plain if annotated is None else annotated)
        tokens = {thread.path: tuple(thread.tokens) for thread in reader.threads}
        tags = {
            path: [at for at, token in enumerate(own) if not grammar.text_mask[token]]
            for path, own in tokens.items()
        }
        return cls(grammar, prompt_tokens, len(plain), annotated is not None, tokens, tags)

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer that the cache must hold, tags and each chunk's ``<async>`` included."""
        return sum(map(len, self.tokens.values())) + len(self.tokens) - 1

    def start(self) -> Interpreter:
        """Return an interpreter at the start of the answer."""
        return Interpreter(
            self.grammar, UNBOUNDED, [0] * self.prompt_tokens, parallel=self.parallel, strict=False
        )


@dataclass(frozen=True, slots=True)
class Scripts:
    """The same answer in both modes; ``arrival_s`` is its request's time if the trace has one."""

    sequential: Script
    parallel: Script
    arrival_s: float | None = None

    @classmethod
    def of(
        cls,
        grammar: TagGrammar,
        prompt_tokens: int,
        plain: Sequence[int],
        annotated: Sequence[int],
        arrival_s: float | None = None,
    ) -> "Scripts":
        """Make both scripts of an answer's token ids, without tags and with them, as ``Script.of`` does."""
        sequential = Script.of(grammar, prompt_tokens, plain, None)
        return cls(sequential, Script.of(grammar, prompt_tokens, plain, annotated), arrival_s)

    @property
    def num_tokens(self) -> int:
        """Tokens of cache that a slot needs in either mode."""
        return self.parallel.prompt_tokens + max(self.sequential.num_tokens, self.parallel.num_tokens)
