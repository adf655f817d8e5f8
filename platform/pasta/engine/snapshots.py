"""Models in the local Hugging Face cache, by their names on the Hub: found without a look at the network."""

import os
from pathlib import Path

from pasta.errors import UserError
from pasta.rows import NotJson, parse_json, read_json

#: Weights in the order in which transformers prefers them; of several files an index lists them.
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LONGEST_HEADER = 100_000_000  # bytes: safetensors' own bound
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
    files = _weights(folder)
    return bool(files) and all(file.is_file() for file in files)


def check_weights(folder: Path, where: str) -> None:
    """Raise ``UserError``, which begins with ``where``, unless a model's directory has all of its weights, and their
    files are as long as they say. Reads the beginning of each file."""
    try:
        whole = has_weights(folder)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not whole:
        first, older = MODEL_WEIGHTS
        raise UserError(
            f"{where} has not all of a model's weights; expected {first} or the files of its index, or {older}"
        )
    for file in sorted(_weights(folder)):
        if file.suffix == ".safetensors" and not _is_whole(file):
            raise UserError(
                f"{where}: {file.name} is cut, or no weights ({file.stat().st_size} bytes); copy it again"
            )


def check_local_weights(source: str, key: str) -> None:
    """``check_weights`` for the model that a configuration's ``key`` names, if ``source`` is a directory."""
    if os.path.isdir(source):
        check_weights(Path(source), f"{key}: {source}")


def _weights(folder: Path) -> set[Path]:
    """The files of weights that transformers reads, there or not; none if it finds nothing to read."""
    for file in MODEL_WEIGHTS:
        if (folder / file).is_file():
            return {folder / file}
        index = folder / f"{file}.index.json"
        if index.is_file():
            listed = read_json(index, key="index of weights")
            weights = listed.get("weight_map") if isinstance(listed, dict) else None
            if not isinstance(weights, dict):
                return set()
            return {folder / (each if isinstance(each, str) else "") for each in weights.values()}
    return set()


def _is_whole(file: Path) -> bool:
    """Whether a file is as long as safetensors' header says: its length (8 bytes), then JSON with each weight's place
    in the bytes that follow."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(size - 8, _LONGEST_HEADER):
            return False
        try:
            header = parse_json(opened.read(length))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
        except (NotJson, AttributeError, TypeError, KeyError, IndexError):
            return False
    return size == 8 + length + max(ends, default=0)
