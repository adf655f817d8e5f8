"""The files of draft heads beside a model. Checks whether they fit the model, without torch, before anything starts."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pasta.bounds import check_integers, check_positive
from pasta.engine.families import read_model_config
from pasta.engine.snapshots import model_directory
from pasta.errors import UserError, first_line
from pasta.rows import read_json

#: The files in a model directory that hold the heads: their weights, and their settings.
WEIGHTS, SETTINGS = "draft_heads.safetensors", "draft_heads.json"
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HeadShape:
    """``depth`` tokens are guessed, by layers of ``width`` units between states of ``hidden_size`` numbers.

    ``guessed`` of the ``vocab_size`` tokens may be guessed, all if it is 0: the output layer is applied once a depth,
    and where it has many tokens, it is most of the cost of a guess (FR-Spec, Zhao et al. 2025).
    """

    hidden_size: int
    vocab_size: int
    depth: int = 4
    width: int = 256
    guessed: int = 0

    def __post_init__(self) -> None:
        check_integers(self, "hidden_size", "vocab_size", "depth", "width", "guessed")
        check_positive(self, "hidden_size", "vocab_size", "depth", "width")
        if not 0 <= self.guessed <= self.vocab_size:
            raise ValueError(f"guessed {self.guessed}, expected 0 to {self.vocab_size}")

    @property
    def tensors(self) -> dict[str, list[int]]:
        """The shapes of the tensors on disk, by name."""
        shapes = {"tokens": [self.guessed]} if self.guessed else {}
        for depth in range(self.depth):
            shapes[f"up.{depth}.weight"] = [self.width, (depth + 2) * self.hidden_size]
            shapes[f"down.{depth}.weight"] = [self.hidden_size, self.width]
        return shapes


def fetch_heads(name: str) -> None:
    """Bring the draft heads of a model on the Hub into the Hugging Face cache, if it has any and the Hub answers."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for file in (SETTINGS, WEIGHTS):
        with suppress(EntryNotFoundError, OSError):
            hf_hub_download(name, file)


def weights_fingerprint(directory: Path) -> str:
    """Tell a model's weights from others by their files' sizes and 64 MiB of each, spread over it: finetuned models
    share embeddings, which many files begin with. The files are those that transformers reads, older ones
    (``pytorch_model*.bin``) only where there are no others."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("pytorch_model*.bin")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for at in range(0, size, max(_MIB, size // 64)):
                file.seek(at)
                digest.update(file.read(_MIB))
    return digest.hexdigest()


def has_heads(directory: Path) -> bool:
    """Whether draft heads, or a part of them, lie in a model's directory."""
    return (directory / WEIGHTS).is_file() or (directory / SETTINGS).is_file()


def check_heads_beside(source: str | Path, key: str) -> None:
    """Raise ``UserError``, naming ``key``, if draft heads lie beside a model that is on this machine and do not fit it.

    ``source`` is a directory or a name in the Hugging Face cache.
    """
    directory = model_directory(source)
    if directory is None or not has_heads(directory):
        return
    model = read_model_config(directory)
    try:
        check_heads(directory, model.hidden_size, model.vocab_size)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def check_heads(directory: Path, hidden_size: int, vocab_size: int) -> HeadShape:
    """The shape of the draft heads in a model's directory; their weights are not read.

    Raises ``UserError`` if they were made for another model, or are broken.
    """
    weights, settings = directory / WEIGHTS, directory / SETTINGS
    expected = "what jobs.sft writes beside the heads"
    told = read_json(settings, key="draft heads", expected=expected)
    try:
        shape, made_for = HeadShape(**told["shape"]), told["model"]
    except (KeyError, TypeError):
        raise UserError(f"draft heads: {settings}: expected {expected}; train them again") from None
    except ValueError as error:
        raise UserError(f"draft heads: {settings}: {first_line(error)}; train them again") from None
    for name, value in (("hidden_size", hidden_size), ("vocab_size", vocab_size)):
        if getattr(shape, name) != value:
            raise UserError(
                f"draft heads: {settings}: {name} {getattr(shape, name)}, but the model has {value}; "
                "train them again, or remove them"
            )
    if made_for != (here := weights_fingerprint(directory)):
        raise UserError(
            f"draft heads: {settings}: made for the weights {made_for}, but here are {here}; "
            "train them again, or remove them"
        )
    found = _tensors(weights)
    if shape.depth > len(found):
        raise UserError(
            f"draft heads: {settings}: depth {shape.depth}, but {weights.name} has {len(found)} tensors; "
            "train them again, or remove them"
        )
    for name, size in shape.tensors.items():
        if found.get(name) != size:
            raise UserError(
                f"draft heads: {weights}: {name} is {found.get(name, 'missing')}, expected {size}; "
                "train them again, or remove them"
            )
    return shape


def _tensors(path: Path) -> dict[str, list[int]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"draft heads: {path}: cannot be loaded ({first_line(error)})") from None
