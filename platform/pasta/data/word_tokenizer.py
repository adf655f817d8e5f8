"""A tokenizer of words and punctuation marks, for use without a trained one."""

import re
from collections.abc import Sequence
from typing import Any

from pasta.lang import CONTROL_TOKENS
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
