"""Encodes prompts of all forms: conversations, plain text, and a user's own token ids.

No user input becomes a control token or another special token.
"""

from collections.abc import Mapping, Sequence

from pasta.lang.codec import Codec
from pasta.lang.tokenizer import CodecError


def encode_messages(codec: Codec, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Encode chat messages. If the chat template takes no system message, it is put before the user's first message.

    Gemma's template takes none, and much instruction data has system messages. Raises ``CodecError``.
    """
    try:
        return codec.encode_prompt(messages)
    except CodecError:
        roles = [message["role"] for message in messages[:2]]
        if roles != ["system", "user"]:
            raise
        system, user, *rest = messages
        joined = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
        return codec.encode_prompt([joined, *rest])


def encode_start(codec: Codec, text: str) -> list[int]:
    """Encode plain text to be continued, after the tokenizer's begin-of-text token if it has one."""
    return [*codec.begin_ids, *codec.encode_lossy(text)]


def check_start(codec: Codec, ids: Sequence[int]) -> None:
    """Raise ``CodecError`` if a user's token ids hold a special token other than a leading begin-of-text token."""
    begin, mask = codec.begin_ids, codec.grammar.text_mask
    first = len(begin) if list(ids[: len(begin)]) == begin else 0
    for place, token in enumerate(ids[first:], start=first):
        if not (0 <= token < len(mask) and mask[token]):
            raise CodecError(f"token {place}: {token} is no id of plain text")
