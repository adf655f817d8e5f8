"""The tokenizer interface that the codec needs, and the five special control tokens."""

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pasta.errors import UserError, first_line
from pasta.lang.document import CONTROL_TOKENS
from pasta.lang.grammar import ControlIds
from pasta.lang.positions import DEFAULT, KEY, SCHEMES, Scheme

#: Held while a tokenizer encodes. transformers keeps ``split_special_tokens`` of a call on the tokenizer itself: two
#: threads with one tokenizer would get each other's.
_ENCODING = threading.Lock()


class CodecError(UserError):
    """A tokenizer that cannot carry PASTA-LANG, or token ids that are not a document."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the codec uses."""

    eos_token_id: int | None

    def __call__(self, text: str, **options: Any) -> Any: ...
    def __len__(self) -> int: ...
    def decode(self, token_ids: Any, **options: Any) -> str: ...
    def get_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def without_halves(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which neither a tokenizer nor a file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def token_ids(tokenizer: Tokenizer, text: str, *, specials: bool = True, begin: bool = False) -> list[int]:
    """The token ids of a text. ``specials``: special tokens that it spells are these, not text. ``begin``: what the
    tokenizer puts around every text is added. Raises CodecError if the tokenizer cannot: transformers also makes one of
    a class that tokenizer.json was not written for."""
    with _ENCODING:
        try:
            return list(
                tokenizer(text, add_special_tokens=begin, split_special_tokens=not specials)["input_ids"]
            )
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair, which the codec looks for
            raise
        except Exception as error:  # the Rust library raises a bare Exception
            raise CodecError(f"tokenizer: it cannot encode {text[:20]!r} ({first_line(error)})") from None


def has_chat_template(tokenizer: Any) -> bool:
    """Whether a tokenizer can write conversations. Models that were only pretrained often have no chat template."""
    return bool(getattr(tokenizer, "chat_template", True))


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], options: Mapping[str, int] | None = None
) -> str:
    """The text of a conversation, ready for the assistant's answer, with variables of the chat template as ``options``.
    Raises CodecError if there is no template, or it rejects the messages."""
    if not has_chat_template(tokenizer):
        raise CodecError("this model has no chat template: it takes plain prompts and no messages")
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **(options or {})
        )
    except Exception as error:  # Jinja's errors: faults of the model directory
        raise CodecError(f"chat template: {first_line(error)}") from error
    return text


def turn_end_id(tokenizer: Tokenizer, specials: Collection[int]) -> int | None:
    """The special token that the chat template puts after an assistant's turn; None if it puts none there."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    mark = "ANSWER"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template that rejects this pair raises again when a real prompt is rendered
        return None
    ids = token_ids(tokenizer, text.partition(mark)[2].lstrip())
    return ids[0] if ids and ids[0] in specials else None


def add_control_tokens(tokenizer: Any) -> int:
    """Add the missing control tokens to a Hugging Face tokenizer; returns how many ids are new.

    One that is an ordinary token of the vocabulary (``/>`` may be) keeps its id and becomes special. The model's
    embedding must then be resized to at least ``len(tokenizer)`` rows.
    """
    before, vocabulary, special = len(tokenizer), tokenizer.get_vocab(), special_ids(tokenizer)
    if plain := [token for token in CONTROL_TOKENS if vocabulary.get(token) not in special]:
        tokenizer.add_tokens(plain, special_tokens=True)
    return len(tokenizer) - before


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of all special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {int(i) for i, token in added.items() if getattr(token, "special", False)} | {
        int(i) for i in getattr(tokenizer, "all_special_ids", [])
    }


def added_tokens(tokenizer: Any) -> dict[int, str]:
    """The tokens that a tokenizer finds in a text before all else, by id. It encodes what is between them apart: it may
    put a space before that, or strip it."""
    return {int(i): str(token) for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}


def anywhere(strings: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds where each of the strings begins, also inside another one: ``/>`` in ``<sync/>``."""
    return re.compile(f"(?={'|'.join(map(re.escape, strings))})")


def num_ids(tokenizer: Tokenizer, vocabulary: Mapping[str, int]) -> int:
    """The number of ids; some may be unused."""
    return max(len(tokenizer), 1 + max(vocabulary.values()))


def control_ids(tokenizer: Tokenizer) -> ControlIds:
    """Ids of the control tokens. Raises :class:`CodecError` if one is missing or not special."""
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in CONTROL_TOKENS if token not in vocabulary]
    if missing:
        raise CodecError(
            f"tokenizer: control tokens {' '.join(missing)} are not in the vocabulary; add them with "
            "pasta.lang.add_control_tokens and resize the model's embedding"
        )
    special = special_ids(tokenizer)
    if plain := [token for token in CONTROL_TOKENS if vocabulary[token] not in special]:
        raise CodecError(
            f"tokenizer: control tokens {' '.join(plain)} are ordinary tokens of the vocabulary; make them special "
            "with pasta.lang.add_control_tokens"
        )
    return ControlIds(*(vocabulary[token] for token in CONTROL_TOKENS))


def stored_scheme(tokenizer: Any) -> Scheme:
    """The rule that a tokenizer carries. Raises :class:`CodecError` for a value that is none."""
    value = getattr(tokenizer, "init_kwargs", {}).get(KEY, DEFAULT)
    if value not in SCHEMES:
        raise CodecError(f"tokenizer: {KEY} {value!r}, expected one of {', '.join(SCHEMES)}")
    scheme: Scheme = value
    return scheme


def store_scheme(tokenizer: Any, scheme: Scheme) -> None:
    """Store the rule in a Hugging Face tokenizer, and in its files when it is saved."""
    if scheme == DEFAULT:
        tokenizer.init_kwargs.pop(KEY, None)  # a model of the default rule has no key
    else:
        tokenizer.init_kwargs[KEY] = scheme
