"""Makes training examples from documents: token ids, positions, and the target of each row.

The thread-aware form is the interpreter's own linearisation. The sequential twin of a document is the same
response with its tags taken out, token for token, so that both models learn the same text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pasta.errors import UserError
from pasta.interpreter import IGNORE, ConstraintError, Linearised, TokenKind, linearise
from pasta.lang import Chunk, Codec, Document, Item, Sync, encode_messages, parse, to_text

Form = Literal["sequential", "pasta"]
Mode = Literal["sequential", "pasta", "both"]
FORMS: dict[Mode, tuple[Form, ...]] = {
    "sequential": ("sequential",),
    "pasta": ("pasta",),
    "both": ("sequential", "pasta"),
}
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its answer. The first five lists have length T, ``sees`` one bitmask a segment.

    ``shift_labels[i]`` is the token that row i predicts, or -100; ``kinds[i]`` is its ``TokenKind``. Bit k of
    ``sees[s]`` says whether segment s sees segment k.
    """

    input_ids: list[int]
    position_ids: list[int]
    segment_ids: list[int]
    shift_labels: list[int]
    kinds: list[int]
    sees: list[int]

    def __len__(self) -> int:
        return len(self.input_ids)


def make_example(codec: Codec, messages: Messages, document: Document, form: Form) -> Example:
    """The example of an annotated answer: with its threads (``pasta``) or without (``sequential``).

    Raises ``CodecError`` if the tokenizer cannot carry the messages or the document.
    """
    prompt_ids = encode_messages(codec, messages)
    response_ids = codec.encode(document)
    if form == "sequential":
        return _causal(prompt_ids, [*without_tags(codec, response_ids), codec.eos_id])
    rows = linearise(codec.grammar, prompt_ids, [*response_ids, codec.eos_id])
    return example_of(rows)


def example_of(rows: Linearised) -> Example:
    """The example of linearised rows."""
    return Example(rows.token_ids, rows.positions, rows.segments, rows.targets, rows.kinds, rows.sees)


def prompt_length(shift_labels: Sequence[int]) -> int:
    """The tokens of the prompt in a row of one answer: its last one is the first that predicts."""
    return next(at for at, label in enumerate(shift_labels, start=1) if label != IGNORE)


def fault_in(codec: Codec, response_ids: Sequence[int]) -> str:
    """Say why a response is not well-formed; empty if it is.

    Checked from its token ids alone: they are one document, a linearisation accepts them, and the document survives
    printing and parsing.
    """
    if not response_ids or response_ids[-1] not in codec.eos_ids:
        return "does not end with end-of-text"
    ids = response_ids[:-1]
    try:
        document = codec.decode(ids)
        linearise(codec.grammar, [0], [*ids, codec.eos_id])
        return "" if parse(to_text(document)) == document else "changes when printed and parsed"
    except (UserError, ConstraintError, ValueError) as error:
        return str(error) or type(error).__name__


def without_syncs(document: Document) -> Document:
    """The document without its syncs: no thread waits for another before its end."""

    def kept(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            Chunk(item.topic, item.tokens, kept(item.items)) if isinstance(item, Chunk) else item
            for item in items
            if not isinstance(item, Sync)
        )

    return Document(kept(document.items))


def without_tags(codec: Codec, response_ids: Sequence[int]) -> list[int]:
    """The text tokens of a response in storage order: promises and all other tags dropped."""
    control = codec.control
    structure = {control.async_open, control.async_close, control.sync}
    kept: list[int] = []
    inside_promise = False
    for token in response_ids:
        if token == control.promise:
            inside_promise = True
        elif token == control.close:
            inside_promise = False
        elif not inside_promise and token not in structure:
            kept.append(token)
    return kept


def _causal(prompt_ids: list[int], answer_ids: list[int]) -> Example:
    """Plain left-to-right text: one segment, positions without gaps, the last row predicts nothing."""
    ids = prompt_ids + answer_ids
    given = len(prompt_ids) - 1
    kinds = [TokenKind.TEXT] * (len(answer_ids) - 1) + [TokenKind.EOS]
    return Example(
        input_ids=ids,
        position_ids=list(range(len(ids))),
        segment_ids=[0] * len(ids),
        shift_labels=[IGNORE] * given + answer_ids + [IGNORE],
        kinds=[int(TokenKind.NONE)] * given + [int(kind) for kind in kinds] + [int(TokenKind.NONE)],
        sees=[1],
    )
