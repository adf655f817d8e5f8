"""Reads the answers of an OpenAI-compatible endpoint. The client accepts most JSON as one: reading it shows whether it
is a chat completion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pasta.lang.tokenizer import without_halves

#: What reading an answer raises that is no chat completion.
NO_COMPLETION = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)

#: More tokens than any answer takes: a count beyond is none.
_MOST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens read and written, as an endpoint counts them."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)


NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``alternatives[i]`` maps candidates for token i, the chosen one first, to log-probabilities (natural
    logarithm); it is empty if none were asked for or given. ``wasted`` are the tokens of tries before it that could not
    be read, and are paid for."""

    text: str
    finish_reason: str
    alternatives: tuple[Mapping[str, float], ...]
    prompt_tokens: int
    completion_tokens: int
    wasted: Tokens = NO_TOKENS


def tokens_of(completion: Any) -> Tokens:
    """The tokens that an answer says it took, whatever else it holds; none where it does not count."""
    try:
        usage = completion.usage
        return Tokens(_count(usage.prompt_tokens), _count(usage.completion_tokens))
    except NO_COMPLETION:
        return NO_TOKENS


def _count(said: Any) -> int:
    count = int(said or 0)
    return count if 0 <= count <= _MOST_TOKENS else 0


def read_reply(completion: Any, tokens: Tokens) -> Reply:
    """Read a completion of so many tokens. Raises one of ``NO_COMPLETION`` if it is none."""
    if isinstance(completion, str):
        raise ValueError(f"no chat completion but {completion[:60]!r}")
    choices = completion.choices
    if not choices:
        error = getattr(completion, "error", None)
        said = error.get("message") if isinstance(error, dict) else None
        raise ValueError(f"no chat completion: {f'it says {said!r}' if said else 'it has no choices'}")
    choice = choices[0]
    text = choice.message.content
    if text is None and choice.finish_reason in ("length", "content_filter"):
        text = ""  # it thought until max_tokens, or must not say: paid for, and another try ends alike
    if not isinstance(text, str):
        raise ValueError("no chat completion: its message has no content")
    logprobs = getattr(choice, "logprobs", None)
    return Reply(
        text=without_halves(text),  # a server that counts in UTF-16 may cut a character in half
        finish_reason=str(choice.finish_reason),
        alternatives=tuple(_alternatives(token) for token in (logprobs.content or ()) if token)
        if logprobs
        else (),
        prompt_tokens=tokens.prompt,
        completion_tokens=tokens.completion,
    )


def _alternatives(token: Any) -> dict[str, float]:
    found = {token.token: float(token.logprob)}
    for other in token.top_logprobs or ():
        found.setdefault(other.token, float(other.logprob))
    return found
