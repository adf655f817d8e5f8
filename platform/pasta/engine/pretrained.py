"""Reads a model's weights from a directory, or by a name on the Hub: the right ones, or an error in one line.

Uses one private attribute of transformers, written against transformers 5.23.0: ``_weight_conversions``, by which a
model is saved under the names that its checkpoint had. tests/engine/test_text_part.py fails when it is another.
"""

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import is_deepspeed_zero3_enabled

from pasta.engine.families import text_part
from pasta.engine.snapshots import model_directory
from pasta.errors import UserError, first_line

_EMBEDDING = "model.embed_tokens.weight"
#: Names of weights in a model of several parts, and in one that is the part which writes text. Checkpoints have either
#: of two forms, by the version of transformers that saved them.
_OF_TEXT_PART = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^(?:model\.)?language_model\.(?:model\.)?": "model.",
}


def read_pretrained(
    auto_class: Any,
    source: str | Path,
    where: str,
    *,
    expected: str = "those of all layers in config.json",
    **options: Any,
) -> Any:
    """The model ``source`` as an Auto class of transformers reads it with these ``options``.

    Raises ``UserError``, which begins with ``where``, if weights are missing (``expected`` says which they should be),
    damaged, not finite, or not those of the model's configuration: transformers would take random numbers for what is
    missing, and leave out what is too much.
    """
    read = partial(auto_class.from_pretrained, source, output_loading_info=True, ignore_mismatched_sizes=True)
    whole: Any = None
    text: Any = None
    try:
        if auto_class is AutoModelForCausalLM:
            whole = AutoConfig.from_pretrained(source)
            if (text := text_part(whole)) is not whole:
                options |= {"config": text, "key_mapping": _OF_TEXT_PART}
        model, info = read(**options)
        if text is not whole and whole.tie_word_embeddings and {*info["missing_keys"]} == {"lm_head.weight"}:
            text.tie_word_embeddings = True  # the part may say otherwise: the whole decides
            model, info = read(**options)
        if _ties_wrongly(model):
            model.config.tie_word_embeddings = False
        if "key_mapping" in options:  # written again it has the names of a text model
            vars(model).pop("_weight_conversions", None)
    except Exception as error:  # of damaged files safetensors, torch and transformers raise anything
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        raise UserError(f"{where}: cannot be loaded ({kind}{first_line(error)})") from None
    if missing := info["missing_keys"]:
        raise UserError(f"{where}: has no weights for {min(missing)}; expected {expected}")
    if mismatched := info["mismatched_keys"]:
        name, *both = min(mismatched)
        shapes = [" x ".join(map(str, shape)) for shape in both]
        raise UserError(f"{where}: {name} is {shapes[0]}, but config.json makes it {shapes[1]}")
    # A bias, or the scale of quantised weights: without it a layer would compute something else.
    layers = {
        name
        for name, layer in model.named_modules()
        if isinstance(getattr(layer, "weight", None), nn.Parameter)
    }
    unexpected = set(info["unexpected_keys"])
    if is_deepspeed_zero3_enabled():  # transformers then says of none that it was left out
        stored = _stored(source, options.get("key_mapping", {}))
        unexpected = stored.keys() - model.state_dict().keys()
        if getattr(model.config, "tie_word_embeddings", False) and _differ(
            stored, "lm_head.weight", _EMBEDDING
        ):
            raise UserError(
                f"{where}: its weights have an output layer of their own, lm_head.weight, which ZeRO-3 leaves out if "
                "config.json ties it to the embedding; expected tie_word_embeddings false there"
            )
    if over := [name for name in unexpected if name.rpartition(".")[0] in layers]:
        raise UserError(
            f"{where}: its weights have {min(over)}, for which config.json has no place; "
            "weights and config.json do not belong together"
        )
    if (found := _not_finite(model)) is not None:
        name, value = found
        raise UserError(
            f"{where}: {name} holds {value:g}; expected finite numbers (it is damaged, or training diverged)"
        )
    return model


def _stored(source: str | Path, renamed: dict[str, str]) -> dict[str, tuple[Path, str]]:
    """The weights in a model's files by name, as the model calls them by the patterns ``renamed``: the file, and the
    name there."""
    directory, found = model_directory(source), {}
    for file in () if directory is None else directory.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            for stored in weights.keys():  # noqa: SIM118, it is no mapping
                name = stored
                for pattern, new in renamed.items():
                    name = re.sub(pattern, new, name)
                found[name] = file, stored
    return found


def _differ(stored: dict[str, tuple[Path, str]], *names: str) -> bool:
    """Whether two weights are both there, and not the same."""
    if not all(name in stored for name in names):
        return False
    tensors = []
    for file, name in (stored[name] for name in names):
        with safe_open(file, "pt") as weights:
            tensors.append(weights.get_tensor(name))
    return not torch.equal(*tensors)


def _not_finite(model: nn.Module) -> tuple[str, float] | None:
    """The first parameter that holds infinity or no number, and that. Takes about a hundredth of the time of loading:
    minimum and maximum, which keep both, are found as fast as memory is read."""
    for name, parameter in model.named_parameters():
        # This process's part, where several share a model; with ZeRO-3 there is nothing in it here.
        part = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
        if part.is_floating_point() and part.numel():
            wide = part.float() if part.itemsize == 1 else part  # there is no minimum of 8 bits
            for bound in torch.stack(torch.aminmax(wide)).tolist():
                if not math.isfinite(bound):
                    return name, bound
    return None


def _ties_wrongly(model: Any) -> bool:
    """Whether the configuration says that the output layer is the embedding, and the weights have one of its own."""
    output = model.get_output_embeddings()
    return (
        output is not None
        and getattr(model.config, "tie_word_embeddings", False)
        and output.weight is not model.get_input_embeddings().weight
    )
