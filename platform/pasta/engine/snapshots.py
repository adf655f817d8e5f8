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
        if (folder / file).is_file():
            return True
        index = folder / f"{file}.index.json"
        if index.is_file():
            listed = read_json(index, key="index of weights")
            weights = listed.get("weight_map") if isinstance(listed, dict) else None
            if not isinstance(weights, dict):
                return False
            files = {each if isinstance(each, str) else "" for each in weights.values()}
            return bool(files) and all((folder / each).is_file() for each in files)
    return False
