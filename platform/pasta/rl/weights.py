"""The policy's weights as its checkpoint names them, whole and merged, while it trains."""

from collections.abc import Iterator

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from pasta.training.model import gathered

_PEFT_PREFIX = "base_model.model."


@torch.no_grad()
def whole_weights(model: nn.Module, dtype: torch.dtype, *, keep: bool) -> dict[str, Tensor]:
    """All weights of ``model``, on the CPU in ``dtype``; empty unless ``keep``.

    Every rank must call it: under ZeRO-3 they gather each layer's weights, and one rank keeps them. An adapter is added
    to a copy of its layer's weights, so that merging leaves no rounding error behind in the model itself.
    """
    found: dict[str, Tensor] = {}
    for name, module in _owners(model):
        parameters = [
            *(module.parameters() if isinstance(module, BaseTunerLayer) else module.parameters(False))
        ]
        with gathered(parameters):
            if keep:
                for key, value in _values(name, module):
                    found[key.removeprefix(_PEFT_PREFIX)] = value.to(device="cpu", dtype=dtype, copy=True)
    return found


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that own weights; an adapted layer is one, with all that is in it. An output layer that is the embedding
    is left out."""
    inside: tuple[str, ...] = ()
    known: set[int] = set()
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if isinstance(module, BaseTunerLayer):
            inside = (*inside, f"{name}.")
            yield name, module
        elif new := {id(parameter) for parameter in module.parameters(recurse=False)} - known:
            known |= new
            yield name, module


def _values(name: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(module, BaseTunerLayer):
        yield from ((f"{name}.{key}", value) for key, value in module.named_parameters(recurse=False))
        return
    for key, value in module.get_base_layer().named_parameters():
        if key == "weight":
            deltas = [module.get_delta_weight(adapter) for adapter in module.active_adapters]
            value = value.float() + sum(delta.float() for delta in deltas)
        yield f"{name}.{key}", value
