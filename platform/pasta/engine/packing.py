"""Packs linear layers into a weight layout of their own, so that decoding on a CPU reaches the memory bandwidth.

``torch.nn.functional.linear`` reads row-major weights at half the memory bandwidth when there are few rows; the same
product over a reordered weight reaches it (docs/notes/cpu-engine.md). The layout is that of the project's kernels
where they are built (``kernels.py``), else oneDNN's.

The only module that uses torch's private mkldnn and onednn operators, those that torch's own compiler emits when it
freezes a model. Written against torch 2.13.0: tests/engine/test_packing.py fails, and names that version, when one is
gone.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pasta.engine import kernels


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _int8_linear(x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None) -> Tensor:
    row_scales = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127.0
    # Unsigned, with 128 for zero: oneDNN has no fast product for signed activations.
    quantised = (torch.round(x / row_scales) + 128.0).to(torch.uint8)
    out = torch.ops.onednn.qlinear_pointwise(
        quantised, 1.0, 128, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    out = out * row_scales
    return out if bias is None else out + bias


#: What the kernels make of a layer's outputs (``cpp/linear.h``: ``Gate``).
_NO_GATE, _SILU, _GELU = 0, 1, 2


class Packed(nn.Module):
    """A linear layer in a weight layout of its own; ``takes`` is the type of its inputs."""

    _weight: Tensor

    def __init__(self, linear: nn.Linear, takes: torch.dtype, *, by_kernel: bool) -> None:
        super().__init__()
        self._inputs, self._takes = linear.in_features, takes
        #: Whether the project's kernels compute it.
        self.by_kernel = by_kernel
        self._outputs = linear.out_features if by_kernel else 0

    @property
    def num_bytes(self) -> int:
        """What a step reads of its weights, nearly."""
        return self._weight.nbytes

    def move_weight(self, memory: Tensor) -> None:
        """Have the weight lie in ``memory`` [num_bytes] uint8, its values as they are."""
        self._weight = memory.view(self._weight.dtype).view(self._weight.shape).copy_(self._weight)

    def example(self, rows: int) -> Tensor:
        """An input [rows, in]."""
        return torch.ones(rows, self._inputs, dtype=self._takes)

    @property
    def can_gate(self) -> bool:
        """Whether ``gated`` works here: both halves must be whole blocks of the kernels' layout."""
        return self.by_kernel and self._outputs % (2 * _OUTPUTS) == 0

    def gated(self, x: Tensor, gelu: bool) -> Tensor:
        """x [..., in] to act(first half of the outputs) * second half [..., out / 2]: GELU's tanh form, or SiLU. It has
        the values of ``forward`` and then the operator ``gated``, and does not write and read what lies between."""
        return self._by_kernel(x, _GELU if gelu else _SILU)

    def _by_kernel(self, x: Tensor, gate: int) -> Tensor:
        raise NotImplementedError


class PackedLinear(Packed):
    """Replaces an ``nn.Linear`` at inference; it keeps no row-major weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, linear.weight.dtype, by_kernel=_has_kernel(linear))
        weight = linear.weight.detach()
        bias = None if linear.bias is None else linear.bias.detach()
        if self.by_kernel:
            weight, bias = _blocked(weight), None if bias is None else bias.float()
        else:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        # Buffers: a trace of the model refers to them by name, for it cannot hold a weight in oneDNN's layout.
        self.register_buffer("_weight", weight, persistent=False)
        self.register_buffer("_bias", bias, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        if self.by_kernel:
            return self._by_kernel(x, _NO_GATE)
        out: Tensor = _PRODUCT(x, self._weight, self._bias)
        return out

    def _by_kernel(self, x: Tensor, gate: int) -> Tensor:
        out: Tensor = torch.ops.pasta.linear(x, self._weight, self._bias, self._outputs, gate)
        return out


def _has_kernel(linear: nn.Linear) -> bool:
    # A kernel reads four bytes of a row at a time.
    weight = linear.weight
    return kernels.runs(weight.dtype) and linear.in_features * weight.element_size() % _STEP_BYTES == 0


#: The layout of the kernels: 64 outputs beside each other, in registers of 16 numbers of four bytes.
_STEP_BYTES, _LANES, _OUTPUTS = 4, 16, 64


def _blocked(weight: Tensor) -> Tensor:
    """[out, in] to [out / 64, in / step, 4, 16, step], padded with zeros; a step is what four bytes hold."""
    step = _STEP_BYTES // weight.element_size()
    outputs, inputs = (-(-size // of) * of for size, of in zip(weight.shape, (_OUTPUTS, step), strict=True))
    padded = weight.new_zeros(outputs, inputs)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.view(-1, _OUTPUTS // _LANES, _LANES, inputs // step, step)
    return blocks.permute(0, 3, 1, 2, 4).contiguous()


# Scripted: a trace can record the operator only from TorchScript. A custom operator in Python would acquire the GIL for
# each layer of a replayed trace.
_PRODUCT = torch.jit.script(_linear)
_INT8_PRODUCT = torch.jit.script(_int8_linear)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed layers work on this device with this dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return kernels.runs(dtype) or onednn_packs(dtype)


def onednn_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has fast products of this type on this CPU."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and supported)


class Int8Linear(Packed):
    """Replaces an ``nn.Linear`` at inference by a product of 8-bit integers, float32 in and out.

    A weight has one scale for each output channel, an activation one for each row, found as the row comes (W8A8,
    dynamic, symmetric). No scale is shared between rows and integer sums are exact, so a row's result does not depend
    on the rows beside it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, torch.float32, by_kernel=kernels.runs(torch.float32))
        scales, quantised = quantised_int8(linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach().float()
        if self.by_kernel:
            packed = _blocked(quantised)
            zeros = 128 * quantised.sum(dim=1, dtype=torch.int32)
        else:
            packed = torch.ops.onednn.qlinear_prepack(quantised, None)
            zeros = torch.zeros(len(scales), dtype=torch.long)
        for name, value in (("weight", packed), ("scales", scales), ("zeros", zeros), ("bias", bias)):
            self.register_buffer(f"_{name}", value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        if self.by_kernel:
            return self._by_kernel(x, _NO_GATE)
        out: Tensor = _INT8_PRODUCT(x, self._weight, self._scales, self._zeros, self._bias)
        return out

    def _by_kernel(self, x: Tensor, gate: int) -> Tensor:
        layer = (x, self._weight, self._scales, self._zeros, self._bias)
        out: Tensor = torch.ops.pasta.linear_int8(*layer, self._outputs, gate)
        return out


def quantised_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scales [out] float32 and numbers [out, in] int8 whose products are near ``weight`` [out, in]."""
    return _by_rows(weight, _int8_rows)


def _int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127.0
    return scales, torch.round(weight / scales[:, None]).to(torch.int8)


def _by_rows(weight: Tensor, quantise: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """What ``quantise`` makes of some rows of ``weight`` in float32 at a time: a large layer's intermediate results
    take long to write and read, and an output layer's are as large as a model."""
    parts = weight.split(max(1, _AT_ONCE // weight.shape[1]))
    scales, numbers = zip(*(quantise(rows.float()) for rows in parts), strict=True)
    return torch.cat(scales), torch.cat(numbers)


#: Weights that are quantised at a time: 4 MB in float32. With fewer each operator waits longer for its threads than it
#: takes, since they sleep in between (``OMP_WAIT_POLICY=PASSIVE``).
_AT_ONCE = 1 << 20

#: Inputs that share a scale in ``Int4Linear``.
INT4_GROUP = 32
#: Widths of a group's range that are tried, as parts of its largest weight: the one with the least error is taken.
_INT4_RANGES = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85)


class Int4Linear(Packed):
    """Replaces an ``nn.Linear`` at inference: weights of 4 bits, activations of 8, float32 in and out.

    32 weights of an output share a scale in bfloat16, which is 4.5 bits a weight (symmetric, round to nearest); an
    activation has one for each row. As in ``Int8Linear`` a row's result does not depend on the rows beside it. Only the
    kernels have this product; the inputs must be a multiple of 32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, torch.float32, by_kernel=True)
        scales, numbers = quantised_int4(linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("_weight", _blocked_int4(scales, numbers), persistent=False)
        self.register_buffer("_bias", bias, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        return self._by_kernel(x, _NO_GATE)

    def _by_kernel(self, x: Tensor, gate: int) -> Tensor:
        out: Tensor = torch.ops.pasta.linear_int4(x, self._weight, self._bias, self._outputs, gate)
        return out


def quantised_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scales [out, in / 32] bfloat16 and numbers [out, in / 32, 32] from -8 to 7 whose products are near ``weight``
    [out, in]."""
    return _by_rows(weight, _int4_rows)


def _int4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.unflatten(1, (-1, INT4_GROUP))
    farthest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales, errors = torch.ones_like(farthest), torch.full_like(farthest, torch.inf)
    for part in _INT4_RANGES:
        # The farthest weight becomes -8, or nearly; where all are zero any scale will do.
        scale = (farthest * (-part / 8)).to(torch.bfloat16).float()
        scale = torch.where(scale == 0, 1.0, scale)
        error = _int4_numbers(groups, scale).mul_(scale).sub_(groups).square_().sum(-1, keepdim=True)
        better = ~(error >= errors)  # also where it is no number: then the scale is none either, and shows it
        scales, errors = torch.where(better, scale, scales), torch.where(better, error, errors)
    return scales.squeeze(-1).to(torch.bfloat16), _int4_numbers(groups, scales).to(torch.int8)


def _int4_numbers(groups: Tensor, scales: Tensor) -> Tensor:
    return (groups / scales).round_().clamp_(-8, 7)


def _blocked_int4(scales: Tensor, numbers: Tensor) -> Tensor:
    """[out / 64, in / 32, 1152] bytes: as in ``_blocked``, but each byte holds the numbers, plus eight, of two steps
    (the first has the low bits); then the outputs' scales."""
    outputs = -(-len(numbers) // _OUTPUTS) * _OUTPUTS
    padded = numbers.new_zeros(outputs, *numbers.shape[1:])
    padded[: len(numbers)] = numbers
    steps = (padded + 8).view(-1, _OUTPUTS, numbers.shape[1], INT4_GROUP // 8, 2, _STEP_BYTES).to(torch.uint8)
    both = steps[..., 0, :] | steps[..., 1, :] << 4  # [blocks, 64, groups, pairs, 4]
    ordered = both.permute(0, 2, 3, 1, 4).flatten(2)
    whole = scales.new_zeros(outputs, scales.shape[1])
    whole[: len(scales)] = scales
    last = whole.view(-1, _OUTPUTS, scales.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat([ordered, last], dim=-1).contiguous()


def why_no_integers(name: str, device: torch.device) -> str:
    """Say why this device cannot run ``int8`` or ``int4``, as the layers here compute them; empty if it can.

    oneDNN's product of two pairs of 8-bit numbers may saturate without VNNI; that of the kernels does not.
    """
    if device.type != "cpu":
        return f"{name} runs on CPUs and CUDA GPUs, not on {device.type}"
    onednn = name == "int8" and torch.backends.mkldnn.is_available() and kernels.cpu_has("avx512_vnni")
    if kernels.ready() or onednn:
        return ""
    if kernels.why_not_here():
        return "this CPU has no instructions for 8-bit products (AVX2 with FMA, or VNNI)"
    return "the kernels for this CPU are not built (python -m jobs.kernels)"


def pack_linears(model: nn.Module, make: type[PackedLinear | Int8Linear | Int4Linear] = PackedLinear) -> None:
    """Replace every linear layer of ``model`` by a packed one, one after another to save memory.

    A layer that no product here fits stays as it is: an odd number of inputs in bfloat16 without oneDNN's. One of
    which 4 bits do not fit the number of inputs has 8.
    """
    for name, child in model.named_children():
        if not isinstance(child, nn.Linear):
            pack_linears(child, make)
        elif make is Int4Linear and child.in_features % INT4_GROUP:
            setattr(model, name, Int8Linear(child))
        elif make is not PackedLinear or _has_kernel(child) or onednn_packs(child.weight.dtype):
            setattr(model, name, make(child))
