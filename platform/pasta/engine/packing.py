"""Linear layers with weights in oneDNN's own layout: what makes decoding on a CPU run at memory speed.

``torch.nn.functional.linear`` re-reads row-major weights in a way that reaches half the memory bandwidth for
few rows; the same product over a reordered weight reaches it (docs/notes/cpu-engine.md). The operators are
those that torch's own compiler emits when it freezes a model.
"""

import torch
from torch import Tensor, nn


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class PackedLinear(nn.Module):
    """Stands in for an ``nn.Linear`` at inference; the row-major weight is given up."""

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


# Scripted: a trace can record the operator only from TorchScript, and an operator of ours in Python would have the
# replay take Python's lock for every layer.
_PRODUCT = torch.jit.script(_linear)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch has the operators for this device and dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer below ``model`` by its packed twin, one after another to save memory."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, PackedLinear(child))
        else:
            pack_linears(child)
