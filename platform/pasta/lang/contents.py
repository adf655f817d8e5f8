"""Tells the messages' contents apart from a chat template's own text in a prompt."""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pasta.lang.tokenizer import CodecError, Tokenizer, token_ids, without_halves

#: Around the reasoning that Qwen 3, DeepSeek R1 and others put before an answer.
_REASONING, _REASONING_END = "<think>", "</think>"


Messages = Sequence[Mapping[str, str]]


def pieces_of(template: str, marked: Messages, contents: Mapping[str, str]) -> list[str]:
    """The template's text for messages of placeholders, cut at each of them. Raises ``CodecError`` if it lacks one."""
    for message in marked:
        if message["content"] in contents and message["content"] not in template:
            raise CodecError(f"chat template: it leaves out a message of role {message['role']!r}")
    return re.split(f"({'|'.join(contents)})", template) if contents else [template]


def ways(messages: Messages) -> Iterator[tuple[Messages, Messages, dict[str, str]]]:
    """How a template may have taken messages: these or what it leaves of them, the same with a placeholder for each
    content, and the contents by their placeholders. As they are; without reasoning; with reasoning put elsewhere."""
    yield (messages, *_marked(messages, apart=False))
    for same in without_reasoning(messages):
        yield (same, *_marked(same, apart=False))
    if any(_REASONING_END in _answer(message) for message in messages):
        yield (messages, *_marked(messages, apart=True))


def _marked(messages: Messages, *, apart: bool) -> tuple[Messages, dict[str, str]]:
    """Messages with placeholders, strings that occur in no content, and what they stand for. An empty content stays: a
    template may treat it in its own way. ``apart``: the reasoning and the rest of an answer have one each."""
    stem = _stem("".join(str(message["content"]) for message in messages))
    contents: dict[str, str] = {}

    def mark(content: str) -> str:
        if not content:
            return ""
        name = f"{stem}{len(contents)}END"
        contents[name] = content
        return name

    marked = []
    for message in messages:
        content = str(message["content"])
        reasoning, end, rest = _answer(message).rpartition(_REASONING_END)
        if apart and end:
            content = f"{_REASONING}{mark(reasoning.removeprefix(_REASONING))}{end}{mark(rest)}"
        else:
            content = mark(content)
        marked.append({**message, "content": content})
    return marked, contents


def _stem(text: str) -> str:
    """A string that does not occur in a text, and is short, whatever the text holds."""
    stem = "MESSAGE"
    while stem in text:
        said = hashlib.blake2b(f"{stem}{text}".encode("utf-8", "surrogatepass"), digest_size=8)
        stem = f"MESSAGE{said.hexdigest().upper()}X"
    return stem


def align(text: str, pieces: Sequence[str], contents: Mapping[str, str]) -> list[str] | None:
    """What each of ``pieces`` has become in ``text``: itself, or of a placeholder in ``contents`` that content, without
    white space or newlines around it where the template leaves these out. ``None`` if the text is not made of these.

    Each place is looked at by itself: Mistral's template trims what the assistant says, and not what users say.
    """
    # Each end that can be reached, with its last part and the ends before it; the first one has all contents whole.
    ends: dict[int, tuple[Any, ...]] = {0: ()}
    for piece in pieces:
        content = contents.get(piece)
        forms = (piece,) if content is None else _forms(content)
        following: dict[int, tuple[Any, ...]] = {}
        for end, before in ends.items():
            for form in forms:
                if text.startswith(form, end):
                    following.setdefault(end + len(form), (before, form))
        ends = following
    found, parts = ends.get(len(text)), []
    if found is None:
        return None
    while found:
        found, part = found
        parts.append(part)
    return parts[::-1]


def encode_whole(
    tokenizer: Tokenizer, text: str, own: Sequence[str], specials: Collection[int]
) -> list[int] | None:
    """Token ids of a prompt as the tokenizer reads it: it may join a content's beginning with what stands before.
    ``None`` unless its ``specials`` are those of the template's ``own`` parts: a content spells one."""
    ids = token_ids(tokenizer, without_halves(text))
    # Most parts stand between all turns: each is encoded once.
    found = {part: [i for i in token_ids(tokenizer, part) if i in specials] for part in {*own} if part}
    expected = chain.from_iterable(found[part] for part in own if part)
    return ids if [i for i in ids if i in specials] == [*expected] else None


def without_reasoning(messages: Messages) -> Iterator[list[Mapping[str, str]]]:
    """The messages without the reasoning in the assistant's: as templates leave it out, with and without the newlines
    behind it. None if there is no reasoning."""
    if not any(_REASONING_END in _answer(message) for message in messages):
        return
    for stripped in ("\n", ""):
        yield [
            {**message, "content": _answer(message).rpartition(_REASONING_END)[2].lstrip(stripped)}
            if _REASONING_END in _answer(message)
            else message
            for message in messages
        ]


def _answer(message: Mapping[str, str]) -> str:
    return message["content"] if message["role"] == "assistant" else ""


def _forms(content: str) -> tuple[str, ...]:
    """What templates make of a content: they trim white space, or newlines alone, at either end."""
    trimmed = [(content.strip(what), content.rstrip(what), content.lstrip(what)) for what in (None, "\n")]
    return tuple(dict.fromkeys((content, *chain.from_iterable(trimmed))))
