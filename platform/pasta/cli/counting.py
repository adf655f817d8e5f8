"""Finds the tokenizer that the ``pasta`` command counts tokens with."""

from collections.abc import Callable
from pathlib import Path

from pasta.data.atlas_keys import shipped_tokenizer
from pasta.data.word_tokenizer import WordTokenizer
from pasta.errors import UserError
from pasta.lang import Codec


def codec_source(name: str) -> tuple[str, Callable[[], Codec]]:
    """Return the tokenizer's name, and a function that makes a codec for each document.

    ``words``, ``atlas``, ``auto`` (atlas if its model is installed, else words), or a directory with a tokenizer.
    Raises UserError if there is no such tokenizer.
    """
    atlas = shipped_tokenizer() if name in ("atlas", "auto") else None
    if name == "words" or (name == "auto" and atlas is None):
        # One codec a document: a codec knows its vocabulary, and the vocabulary of words differs by document.
        return "words", lambda: Codec(WordTokenizer())
    if name == "atlas" and atlas is None:
        raise UserError(
            "--tokenizer atlas: no atlas model is installed; make one with make train, or use words"
        )
    directory = atlas or Path(name)
    if not name or not directory.is_dir():
        raise UserError(
            f"--tokenizer {name}: no such directory; expected atlas, words, or a tokenizer's directory"
        )
    from pasta.data.tokenizers import load_tokenizer

    codec = Codec(load_tokenizer(directory, "--tokenizer"))
    return "atlas" if atlas else name, lambda: codec
