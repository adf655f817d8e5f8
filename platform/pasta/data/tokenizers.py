"""Reads tokenizers and configurations of models, and finds the tokenizer that counts lengths by its name."""

import logging
import tempfile
from pathlib import Path
from typing import Any

from pasta.data.atlas_keys import ATLAS, shipped_tokenizer
from pasta.data.word_tokenizer import WordTokenizer
from pasta.errors import UserError, first_line
from pasta.lang import Codec, add_control_tokens

# Hugging Face warns about texts longer than a model's context; here texts are only counted.
_QUIET = ("transformers.tokenization_utils_base",)


def find_tokenizer(name: str, key: str = "tokenizer") -> Any:
    """``atlas`` (the shipped models'), a directory, or a Hub name (``owner/name``); control tokens are added.

    Raises UserError, naming ``key``, if there is none or it cannot carry PASTA-LANG.
    """
    if name == ATLAS:
        if (shipped := shipped_tokenizer()) is None:
            from pasta.data.atlas.tokenizer import train_tokenizer

            with tempfile.TemporaryDirectory() as directory:
                return _ready(train_tokenizer(directory))
        return load_tokenizer(shipped, key)
    check_source(key, name, "expected atlas, a directory or a Hub name (owner/name)")
    return load_tokenizer(name, key)


def counting_tokenizer(name: str, key: str = "tokenizer") -> Any:
    """``words``, or what ``find_tokenizer`` finds: to count tokens with. Raises UserError as that does."""
    return WordTokenizer() if name == "words" else find_tokenizer(name, key)


def load_tokenizer(source: str | Path, key: str = "tokenizer") -> Any:
    """A Hugging Face tokenizer with control tokens. Raises UserError if it cannot be read or cannot carry them."""
    return _ready(read_tokenizer(key, source))


def check_source(key: str, source: str, hint: str = "train that model first, or name another") -> None:
    """Raise UserError, naming ``key``, for a path that is no directory. A Hub name (``owner/name``) passes."""
    is_path = source.startswith((".", "/", "~", "runs/")) or source.count("/") != 1
    if Path(source).is_file() and (why := why_no_model(Path(source))):
        raise UserError(f"{key}: {source} {why}")
    if is_path and not Path(source).is_dir():
        raise UserError(f"{key}: {source}: no such directory; {hint}")


def read_tokenizer(key: str, source: str | Path) -> Any:
    """A model's tokenizer as it is. Raises UserError, naming ``key``, if none can be read."""
    for logger in _QUIET:
        logging.getLogger(logger).setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source))
        # Of some families (Qwen, Gemma) transformers makes a tokenizer of nothing where there is none.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            raise ValueError("its vocabulary is empty")
    except Exception as error:  # of a damaged file transformers raises anything, tokenizers a bare Exception
        without = Path(source).is_dir() and not (Path(source) / "tokenizer.json").is_file()
        why = "there is no tokenizer.json" if without else first_line(error)
        raise UserError(f"{key}: {source}: no tokenizer can be read there ({why})") from None
    return tokenizer


def read_config(key: str, source: str) -> Any:
    """A model's configuration. Raises UserError, naming ``key``, if none can be read."""
    from transformers import AutoConfig

    check_source(key, source)
    if why := why_no_model(Path(source)):
        raise UserError(f"{key}: {source} {why}")
    try:
        return AutoConfig.from_pretrained(source)
    except Exception as error:  # each class checks its values in its own way
        raise UserError(f"{key}: {source}: no model can be read there ({first_line(error)})") from None


def why_no_model(directory: Path) -> str:
    """Say why a directory is not that of a whole model, if it is or holds what models come as elsewhere; else empty."""
    if (directory / "config.json").exists():
        return ""
    if (directory / "adapter_config.json").is_file():
        return "holds an adapter; expected a whole model, into which it has been merged (merge_and_unload of peft)"
    if directory.suffix == ".gguf" and directory.is_file():
        return (
            "is a GGUF file; expected a directory with config.json, a tokenizer, and weights as safetensors"
        )
    if any(directory.glob("*.gguf")):
        return "holds a GGUF file; expected config.json, a tokenizer, and weights as safetensors"
    return ""


def _ready(tokenizer: Any) -> Any:
    add_control_tokens(tokenizer)
    Codec(tokenizer)
    return tokenizer
