"""The families of models that the engine knows, by their configurations. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.errors import UserError, first_line
from pasta.rows import kind_of, read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: ``model_type`` of the families whose masks, positions and cache are tested against their own forward.
SUPPORTED_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


def check_architecture(config: Any, where: str) -> None:
    """Raise ``UserError`` if the engine does not know this family."""
    if config.model_type not in SUPPORTED_ARCHITECTURES:
        raise UserError(
            f"{where}: architecture {config.model_type!r} is not supported; "
            f"expected one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )


def read_model_config(path: str | Path) -> "PretrainedConfig":
    """A transformers configuration from a JSON file or a model directory. Raises ``UserError``."""
    from transformers import AutoConfig

    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    values = read_json(file, key="model configuration")
    if not isinstance(values, dict):
        raise UserError(f"model configuration: {file}: expected an object, got {kind_of(values)}")
    try:
        return AutoConfig.for_model(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"model configuration {str(path)!r}: {first_line(error)}") from None


def depends_on_length(config: Any) -> bool:
    """Whether a model's rotary embedding of a token depends on the length fed with it (dynamic and longrope
    scaling)."""
    found = getattr(config, "rope_parameters", None) or {}
    kinds = [found, *(value for value in found.values() if isinstance(value, dict))]
    return any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds)
