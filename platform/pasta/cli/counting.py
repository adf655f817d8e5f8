"""What counts tokens for the ``pasta`` command."""

import importlib.resources
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.lang import CONTROL_TOKENS, Codec, add_control_tokens
from pasta.lang.codec import MAX_ESTIMATE
from pasta.lang.document import ESTIMATE_STEP

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
