"""Packs linear layers into oneDNN's own weight layout, so that decoding on a CPU reaches the memory bandwidth.

``torch.nn.functional.linear`` reads row-major weights at half the memory bandwidth when there are few rows; the same
product over a reordered weight reaches it (docs/notes/cpu-engine.md).

The only module that uses torch's private mkldnn operators, those that torch's own compiler emits when it freezes a
model. Written against torch 2.13.0: tests/engine/test_packing.py fails, and names that version, when one is gone.
"""

import torch
from torch import Tensor, nn


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class PackedLinear(nn.Module):
    """Replaces an ``nn.Linear`` at inference; it keeps no row-major weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        # Buffers: a trace of the model refers to them by name, for it cannot hold a weight in this layout.
        self.register_buffer("_weight", weight, persistent=False)
        self.register_buffer("_bias", None if linear.bias is None else linear.bias.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        out: Tensor = _PRODUCT(x, self._weight, self._bias)
        return out


# Scripted: a trace can record the operator only from TorchScript. A custom operator in Python would acquire the GIL for
# each layer of a replayed trace.
_PRODUCT = torch.jit.script(_linear)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed layers work on this device with this dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of ``model`` by a packed one, one after another to save memory."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, PackedLinear(child))
        else:
            pack_linears(child)
