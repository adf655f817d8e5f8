"""Linear layers with weights in oneDNN's own layout: what makes decoding on a CPU run at memory speed.

``torch.nn.functional.linear`` re-reads row-major weights in a way that reaches half the memory bandwidth for
few rows; the same product over a reordered weight reaches it (BENCHMARKS.md, "What was tried"). The operators are
those that torch's own compiler emits when it freezes a model.
"""

import itertools
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

_LIBRARY = torch.library.Library("pasta", "DEF")
_LIBRARY.define("packed_linear(Tensor x, int handle) -> Tensor")


class PackedLinear(nn.Module):
    """Stands in for an ``nn.Linear`` at inference; the row-major weight is given up."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._handle = next(_HANDLES)
        _PACKED[self._handle] = self

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        if torch.jit.is_tracing():
            # A trace cannot hold a weight in this layout, nor the operator's signature: it holds a number.
            traced: Tensor = torch.ops.pasta.packed_linear(x, self._handle)
            return traced
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """The same, outside a trace."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, "none", [], "")
        return out


_HANDLES = itertools.count()
_PACKED: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
_LIBRARY.impl("packed_linear", lambda x, handle: _PACKED[handle].product(x), "CPU")


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
