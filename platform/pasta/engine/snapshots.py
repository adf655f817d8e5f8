"""Models in the local Hugging Face cache, by their names on the Hub: found without a look at the network."""

from pathlib import Path

from pasta.rows import read_json

#: Weights in the order in which transformers prefers them; of several files an index lists them.
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZERS = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"}


def cached(name: str) -> Path | None:
    """The directory of a model's last snapshot in the local cache, or ``None`` unless all that it takes is there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a name that the Hub could have
        return None
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    whole = any((folder / file).is_file() for file in _TOKENIZERS) and has_weights(folder)
    return folder if whole else None


def model_directory(source: str | Path) -> Path | None:
    """Where a model's files are on this machine: in the directory ``source``, or in the local cache, if it is a name.

    ``None`` if they are not here, or not all of them.
    """
    return Path(source) if Path(source).is_dir() else cached(str(source))


def has_weights(folder: Path) -> bool:
    """Whether a model's directory has weights that transformers reads, all of them if an index lists several files.
    Raises ``UserError`` for an index that is no JSON."""
    for file in MODEL_WEIGHTS:
        index = folder / f"{file}.index.json"
        if index.is_file():
            weights = read_json(index, key="index of weights").get("weight_map") or {}
            return bool(weights) and all((folder / each).is_file() for each in set(weights.values()))
        if (folder / file).is_file():
            return True
    return False
