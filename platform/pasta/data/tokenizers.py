"""Finds the tokenizer that counts lengths, by name."""

import logging
import tempfile
from pathlib import Path
from typing import Any

from pasta.data import atlas
from pasta.errors import UserError
from pasta.lang import Codec, add_control_tokens

ATLAS = "atlas"
# Hugging Face warns about texts longer than a model's context; here texts are only counted.
_QUIET = ("transformers.tokenization_utils_base",)


def find_tokenizer(name: str) -> Any:
    """``atlas`` (the shipped models'), a directory, or a Hub name (``owner/name``); control tokens are added.

    Raises UserError if there is none or it cannot carry PASTA-LANG.
    """
    if name == ATLAS:
        shipped = sorted((Path(atlas.__file__).parent / "models").rglob("tokenizer.json"))
        if not shipped:
            from pasta.data.atlas.tokenizer import train_tokenizer

            with tempfile.TemporaryDirectory() as directory:
                return _ready(train_tokenizer(directory))
        return load_tokenizer(shipped[0].parent)
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise UserError(
            f"tokenizer: {name}: no such directory; expected atlas, a directory or a Hub name (owner/name)"
        )
    return load_tokenizer(name)


def load_tokenizer(source: str | Path) -> Any:
    """A Hugging Face tokenizer with control tokens. Raises UserError if it cannot be read or cannot carry them."""
    for logger in _QUIET:
        logging.getLogger(logger).setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    try:
        return _ready(AutoTokenizer.from_pretrained(str(source)))
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"tokenizer: {source}: no tokenizer could be read there ({reason})") from None


def _ready(tokenizer: Any) -> Any:
    add_control_tokens(tokenizer)
    Codec(tokenizer)
    return tokenizer
