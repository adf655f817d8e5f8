"""Token counts, thread structure and critical path of a document."""

import importlib.resources
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.interpreter import ConstraintError, Interpreter, Limits, Trace
from pasta.lang import (
    CONTROL_TOKENS,
    Chunk,
    Codec,
    CodecError,
    Document,
    Item,
    Sync,
    Text,
    add_control_tokens,
)
from pasta.lang.codec import MAX_ESTIMATE
from pasta.lang.document import ESTIMATE_STEP

_UNLIMITED = Limits(max_tokens=1 << 40, max_chunk_tokens=1 << 40, max_threads=1 << 40, max_depth=1 << 40)
_PIECE = re.compile(r' topic="|" tokens="\d+"| ?\w+| ?[^\w\s]|\s', re.DOTALL)
_END = "<end>"


class WordTokenizer:
    """Words and punctuation marks, each with the space before it: counts that need no tokenizer.

    The vocabulary grows as texts are encoded. It is the part of a Hugging Face tokenizer that the codec uses.
    """

    def __init__(self) -> None:
        tails = [f'" tokens="{n}"' for n in range(ESTIMATE_STEP, MAX_ESTIMATE + 1, ESTIMATE_STEP)]
        self._pieces: list[str] = [*CONTROL_TOKENS, _END, *tails]
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}
        self.eos_token_id: int | None = self._ids[_END]
        self.all_special_ids = list(range(self._ids[_END] + 1))

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [self._id(piece) for piece in _PIECE.findall(text)]}

    def __len__(self) -> int:
        return len(self._pieces)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """The text of token ids."""
        return "".join(self._pieces[token] for token in token_ids)

    def get_vocab(self) -> dict[str, int]:
        """Pieces seen so far."""
        return dict(self._ids)

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        """Messages, one a line: counting needs no template."""
        return "".join(f"{message['role']}: {message['content']}\n" for message in conversation)

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


def codec_source(name: str) -> tuple[str, Callable[[], Codec]]:
    """What counts tokens, by name, and what makes its codec for each document.

    ``words``, ``atlas``, ``auto`` (atlas if its model is installed, else words), or a directory with a tokenizer.
    Raises UserError if there is no such tokenizer.
    """
    atlas = _atlas_directory() if name in ("atlas", "auto") else None
    if name == "words" or (name == "auto" and atlas is None):
        # A codec knows its vocabulary, and that of words differs from document to document.
        return "words", lambda: Codec(WordTokenizer())
    if name == "atlas" and atlas is None:
        raise UserError(
            "--tokenizer atlas: no atlas model is installed; make one with make train, or use words"
        )
    codec = Codec(_load_directory(str(atlas or name)))
    return "atlas" if atlas else name, lambda: codec


def _atlas_directory() -> Path | None:
    """Where the package keeps a trained atlas tokenizer."""
    package = Path(str(importlib.resources.files("pasta.data") / "atlas"))
    return min((file.parent for file in package.rglob("tokenizer.json")), default=None)


def _load_directory(name: str) -> Any:
    if not Path(name).is_dir():
        raise UserError(
            f"--tokenizer {name}: no such directory; expected atlas, words, or a tokenizer's directory"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--tokenizer {name}: no tokenizer could be read there ({reason})") from None
    add_control_tokens(tokenizer)
    return tokenizer


@dataclass(frozen=True, slots=True)
class Measures:
    """One document, counted.

    ``plain_tokens`` is the sequential answer, end-of-text included. ``chunk_tokens`` are the lengths that
    ``estimates`` estimate: all between a chunk's tags, nested promises and chunks included.
    """

    trace: Trace
    plain_tokens: int
    num_syncs: int
    depth: int
    chunk_tokens: tuple[int, ...]
    estimates: tuple[int, ...]
    topics: tuple[str, ...]
    sync_id: int

    @property
    def num_threads(self) -> int:
        """Threads, the main one included."""
        return len(self.trace.threads)

    @property
    def speedup(self) -> float:
        """Theoretical speedup: the sequential answer's tokens by the critical path, tags counted."""
        return self.plain_tokens / self.trace.critical_path


def measure(document: Document, codec: Codec) -> Measures:
    """Count a document. Raises CodecError if the tokenizer cannot carry it."""
    ids = [*codec.encode(document), codec.eos_id]
    interpreter = Interpreter(codec.grammar, _UNLIMITED, (), strict=False)
    try:
        interpreter.drive(0, ids)
    except ConstraintError as error:
        raise CodecError(f"tokenizer: it cannot carry this document ({error})") from None
    trace = interpreter.trace()
    chunks = list(document.chunks())  # in the order in which their threads are created
    return Measures(
        trace=trace,
        plain_tokens=_plain_tokens(document.items, codec) + 1,
        num_syncs=_num_syncs(document.items),
        depth=document.depth(),
        chunk_tokens=tuple(len(codec.encode(Document(chunk.items))) for chunk in chunks),
        estimates=tuple(chunk.tokens for chunk in chunks),
        topics=("", *(chunk.topic for chunk in chunks)),
        sync_id=codec.control.sync,
    )


def _plain_tokens(items: Sequence[Item], codec: Codec) -> int:
    # Run by run, as training data are encoded, so that both twins have the same tokens.
    total = 0
    for item in items:
        if isinstance(item, Text):
            total += len(codec.encode_text(item.text))
        elif isinstance(item, Chunk):
            total += _plain_tokens(item.items, codec)
    return total


def _num_syncs(items: Sequence[Item]) -> int:
    return sum(_num_syncs(i.items) if isinstance(i, Chunk) else isinstance(i, Sync) for i in items)
