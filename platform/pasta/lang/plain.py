"""A document's answer as token ids: plain, as a sequential decoder would write it, and annotated."""

from collections.abc import Iterator, Sequence

from pasta.lang.codec import Codec
from pasta.lang.document import Chunk, Document, Item, Text


def plain_ids(codec: Codec, document: Document) -> list[int]:
    """Token ids of the answer without its tags, in reading order, end-of-text last.

    Each text run is encoded on its own, as ``Codec.encode`` does, so that both forms hold the same text tokens.
    """
    return [*_text_ids(codec, document.items), codec.eos_id]


def annotated_ids(codec: Codec, document: Document) -> list[int]:
    """The annotated answer's token ids in storage order, end-of-text last."""
    return [*codec.encode(document), codec.eos_id]


def _text_ids(codec: Codec, items: Sequence[Item]) -> Iterator[int]:
    for item in items:
        if isinstance(item, Text):
            yield from codec.encode_text(item.text)
        elif isinstance(item, Chunk):
            yield from _text_ids(codec, item.items)
