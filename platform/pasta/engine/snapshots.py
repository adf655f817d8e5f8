"""Models in the local Hugging Face cache, by their names on the Hub: found without a look at the network."""

import math
import os
from pathlib import Path

from pasta.errors import UserError
from pasta.rows import read_json

#: Weights in the order in which transformers prefers them; of several files an index lists them.
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: What names of weights hold with which a model sees images.
_SEES = ("vision_tower", "multi_modal_projector")
_LARGEST_NUMBER = 4  # bytes: float32
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
        if file.suffix == ".safetensors" and _shapes(file) is None:
            raise UserError(
                f"{where}: {file.name} is cut, or no weights ({file.stat().st_size} bytes); copy it again"
            )


def num_weights(folder: Path) -> int:
    """How many numbers the weights in a model's directory are, without those with which it sees images. If the files
    are no safetensors: how many at least. Reads the beginning of each file; one that is cut counts nothing."""
    total = 0
    for file in filter(Path.is_file, _weights(folder)):
        if file.suffix == ".safetensors":
            shapes = _shapes(file) or {}
            total += sum(
                math.prod(shape) for name, shape in shapes.items() if not any(part in name for part in _SEES)
            )
        else:
            total += file.stat().st_size // _LARGEST_NUMBER
    return total


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


def _shapes(file: Path) -> dict[str, list[int]] | None:
    """The shapes of the weights in a file of safetensors, by name. None if it is cut, or no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except SafetensorError:
        return None
