"""Encodes prompts of all forms: conversations, plain text, and a user's own token ids.

No text of a user becomes a control token or another special token, and no token id of a user is a control token.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile

from pasta.lang.codec import Codec
from pasta.lang.tokenizer import CodecError, without_halves


def encode_messages(
    codec: Codec, messages: Sequence[Mapping[str, str]], options: Mapping[str, int] | None = None
) -> list[int]:
    """Encode chat messages, with variables of the chat template as ``options``. If it takes no system message, that is
    put before the user's first message.

    Gemma's template takes none, and much instruction data has system messages. Raises ``CodecError``.
    """
    try:
        return codec.encode_prompt(messages, options)
    except CodecError:
        if (joined := system_joined(messages)) is None:
            raise
        return codec.encode_prompt(joined, options)


def system_joined(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]] | None:
    """Messages whose system message is put before the user's first one; None unless they begin with these two."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return None
    system, user, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def turn_tail(codec: Codec) -> list[int] | None:
    """The ids that the chat template puts between an answer and the user's next message; ``None`` if the next turn's
    prompt does not begin with this one's and the answer."""
    message = {"role": "user", "content": "x"}
    answered = [message, {"role": "assistant", "content": "x"}]
    try:
        begun = [*codec.encode_prompt([message]), *codec.encode_lossy("x")]
        turns = [
            codec.encode_prompt([*answered, {"role": "user", "content": content}]) for content in ("0", "A")
        ]
    except CodecError:
        return None
    common = [one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(*turns, strict=False))]
    return common[len(begun) :] if common[: len(begun)] == begun else None


def encode_start(codec: Codec, text: str) -> list[int]:
    """Encode plain text to be continued, after the tokenizer's begin-of-text token if it has one."""
    return [*codec.begin_ids, *codec.encode_beginning(without_halves(text))]


def check_start(codec: Codec, ids: Sequence[int]) -> None:
    """Raise ``CodecError`` if a user's token ids hold a control token, or one that stands in no prompt."""
    mask = codec.grammar.text_mask
    for place, token in enumerate(ids):
        if not (0 <= token < len(mask) and mask[token]) and token not in _special_in_prompts(codec):
            raise CodecError(
                f"token {place}: {token}, expected the id of text, of its begin or end, or of the chat template"
            )


@lru_cache(maxsize=32)
def _special_in_prompts(codec: Codec) -> frozenset[int]:
    """The special tokens that a prompt may hold: begin and end of text, and what the chat template writes."""
    found = {*codec.begin_ids, *codec.eos_ids} | ({codec.bos_id} if codec.bos_id is not None else set())
    turns = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
    for messages in (turns, turns[1:]):
        with suppress(CodecError):  # there is no template, or it takes no system message
            found.update(codec.special_ids.intersection(codec.encode_prompt(messages)))
    return frozenset(found - {*codec.control.as_tuple()})
