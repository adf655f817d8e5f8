"""Prompts of all forms as token ids: conversations, plain text, and a user's own ids. None holds a control token
or any other special one that the user put there."""

from collections.abc import Mapping, Sequence

from pasta.lang.codec import Codec
from pasta.lang.tokenizer import CodecError


def encode_messages(codec: Codec, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The prompt's token ids. Where the chat template takes no system message, it leads the user's first one.

    Gemma's template is such a one, and much instruction data has system messages. Raises ``CodecError``.
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
    """Plain text to be continued, behind what the tokenizer begins every text with."""
    return [*codec.begin_ids, *codec.encode_lossy(text)]


def check_start(codec: Codec, ids: Sequence[int]) -> None:
    """Raise ``CodecError`` if token ids from a user are not those of plain text to be continued.

    What the tokenizer begins every text with may lead them.
    """
    begin, mask = codec.begin_ids, codec.grammar.text_mask
    first = len(begin) if list(ids[: len(begin)]) == begin else 0
    for place, token in enumerate(ids[first:], start=first):
        if not (0 <= token < len(mask) and mask[token]):
            raise CodecError(f"token {place}: {token} is no id of plain text")
