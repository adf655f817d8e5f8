"""The families of models that the engine knows, by their configurations. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.errors import UserError, first_line
from pasta.lang import Codec
from pasta.rows import kind_of, read_json, short_repr

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: ``model_type`` of the families whose masks, positions and cache are tested against their own forward.
SUPPORTED_ARCHITECTURES = (
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "olmo2",
    "olmo3",
    "phi3",
    "smollm3",
)
#: The ways in which transformers scales positions.
SCALINGS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
#: ``model_type`` of models that see images and write text by a model of a family above: that part of them is read.
_WITH_TEXT_PART = ("gemma3", "mistral3")


def text_part(config: Any) -> Any:
    """A configuration, or that of the part which writes text. How the weights are quantised stands beside the parts."""
    if config.model_type not in _WITH_TEXT_PART:
        return config
    text = config.get_text_config()
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = quantised
    return text


def pretrained_config(source: str | Path) -> Any:
    """The configuration at a directory or of a name on the Hub; of the part that writes text, where there are others.
    Raises what transformers raises, which is anything."""
    from transformers import AutoConfig, PretrainedConfig

    try:
        return text_part(AutoConfig.from_pretrained(source))
    except Exception:
        _check_scaling(PretrainedConfig.get_config_dict(source)[0])
        raise


def generation_ends(source: str | Path) -> frozenset[int]:
    """The tokens with which a model's answers end by its generation_config.json, or else by its config.json, as
    transformers and vLLM read them."""
    from transformers import AutoConfig, GenerationConfig

    try:
        config: Any = GenerationConfig.from_pretrained(source)
    except Exception:  # there is none, or it is damaged
        config = AutoConfig.from_pretrained(source)
    ends = getattr(config, "eos_token_id", None)
    return frozenset(end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


def check_architecture(config: Any, where: str) -> None:
    """Raise ``UserError`` if the engine does not know this family, the model's weights are quantised, or its attention
    is one that nothing computes."""
    if config.model_type not in SUPPORTED_ARCHITECTURES:
        raise UserError(
            f"{where}: architecture {config.model_type!r} is not supported; "
            f"expected one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise UserError(
            f"{where}: its weights are quantised ({method or 'quantization_config in config.json'}); "
            "expected those of a float format, which the engine quantises itself"
        )
    if heads := getattr(config, "num_attention_heads", None):
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        if size % 2:
            raise UserError(
                f"{where}: heads of {size} numbers; expected an even number, which is turned in pairs"
            )
    for kind in _scalings(config):
        if (name := kind.get("rope_type", "default")) not in SCALINGS:
            raise UserError(
                f"{where}: positions are scaled as {short_repr(name)}, which is not known; expected one of "
                f"{', '.join(SCALINGS)} as rope_type"
            )
    if config.model_type == "ministral3" and (rope := getattr(config, "rope_parameters", None)):
        for key in ("llama_4_scaling_beta", "original_max_position_embeddings"):
            if rope.get(key) is None:
                raise UserError(f"{where}: rope_parameters has no {key}; expected a number")


def check_vocabulary(codec: Codec, rows: int | None, where: str) -> None:
    """Raise ``UserError`` if a tokenizer has more tokens than its model's embedding has ``rows`` (None: not known)."""
    tokens = codec.grammar.vocab_size
    if rows is not None and tokens > rows:
        hint = " or have no room for the control tokens (jobs.sft makes it)" if codec.parallel else ""
        raise UserError(
            f"{where}: its embedding has {rows} rows, its tokenizer {tokens} tokens; the weights belong to another "
            f"vocabulary{hint}"
        )


def read_model_config(path: str | Path) -> "PretrainedConfig":
    """A transformers configuration from a JSON file or a model directory. Raises ``UserError``."""
    from transformers import AutoConfig

    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    values = read_json(file, key="model configuration")
    if not isinstance(values, dict):
        raise UserError(f"model configuration: {file}: expected an object, got {kind_of(values)}")
    try:
        _check_scaling(values)
        return text_part(AutoConfig.for_model(**values))
    except Exception as error:  # each class checks its values in its own way
        raise UserError(f"model configuration {str(path)!r}: {first_line(error)}") from None


def _check_scaling(values: dict[str, Any]) -> None:
    """Raise ``UserError`` if the scaling of positions has a name that transformers misreads: by its old name it does
    not find where longrope's original positions are given."""
    scaling = values.get("rope_scaling")
    if isinstance(scaling, dict) and "su" in (scaling.get("type"), scaling.get("rope_type")):
        raise UserError("rope_scaling has the type 'su', the old name of longrope; expected longrope there")


def context_positions(config: Any) -> int:
    """How many positions a model has. With longrope scaling those that it was first trained with: past them the
    embedding of every token would be another one, that of what is cached and of neighbours too."""
    first = [
        kind["original_max_position_embeddings"]
        for kind in _scalings(config)
        if kind.get("rope_type") == "longrope"
    ]
    return int(min([config.max_position_embeddings, *first]))


def _scalings(config: Any) -> list[dict[str, Any]]:
    """How a model's positions are scaled: for all layers, or for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    return [found, *(value for value in found.values() if isinstance(value, dict))]
