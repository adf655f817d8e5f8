"""Number formats: what a model computes in, and which format is fastest on this machine.

``auto`` times float formats on the linear layers of the model's first decoder layer: decoding spends nearly all of its
time in such layers, and the formats' speeds differ several times between CPUs. ``LoadedModel.format`` keeps the choice
and its reason; the service logs them, the benchmarks print and record them.
"""

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from pasta.engine import kernels, quantising
from pasta.engine.embedding import keep_stored_embedding
from pasta.engine.fusing import fused_layers, use_kernels
from pasta.engine.packing import Int4Linear, Int8Linear, PackedLinear, can_pack, pack_linears
from pasta.engine.section import AS_CONFIGURED, INTEGERS
from pasta.engine.supported import check_format_runs, why_not_format

_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Rows that the layers are timed with: one thread alone, and a parallel answer.
_ROWS = (1, 8)
#: At least so many rounds, and for so many seconds: a small model's take less time than others may hold the core.
_ROUNDS, _SECONDS = 7, 0.1
#: ``auto`` chooses float32 only where it is clearly faster than bfloat16, which takes half the memory. With kernels or
#: products of bfloat16 a CPU runs it 1 to 3 times as fast, without either half as fast. Timing errors from other work
#: are smaller than that, so that replicas on one kind of machine choose alike.
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A number format that was chosen, by its name in configurations, and ``why``."""

    name: str
    why: str = AS_CONFIGURED
    on_gpu: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all but linear layers: activations, and keys and values unless ``device.py`` halves these."""
        if self.name in quantising.GPU_FORMATS:
            return torch.bfloat16 if self.on_gpu else torch.float32
        return _TORCH[self.name]


def choose_format(name: str, model: nn.Module, device: torch.device) -> NumberFormat:
    """The format of this name; for ``auto`` the float format in which a layer of ``model`` is fastest here.

    Raises ``UserError`` if this machine cannot run it.
    """
    check_format_runs(name, device)
    return (
        fastest_float(model, device) if name == "auto" else NumberFormat(name, on_gpu=device.type == "cuda")
    )


def formats_here(device: torch.device) -> list[str]:
    """The formats that this machine runs well: float32 first."""
    floats = [name for name in ("bfloat16",) if _runs(name, device)]
    return [
        "float32",
        *floats,
        *(name for name in quantising.GPU_FORMATS if not why_not_format(name, device)),
    ]


def fastest_float(model: nn.Module, device: torch.device) -> NumberFormat:
    """Time each float format on the linear layers of the model's first decoder layer, with 1 and with 8 rows, and take
    bfloat16 unless float32 is clearly faster."""
    names = [name for name in ("float32", "bfloat16") if _runs(name, device)]
    if len(names) == 1:
        return NumberFormat(names[0], "the only float format here")
    decoder: Any = model.base_model
    layer: nn.Module = decoder.layers[0]
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    seconds = _timed({name: _runner(linears, _TORCH[name], device) for name in names}, device)
    told = ", ".join(f"{name} {1e3 * seconds[name]:.3g} ms" for name in names)
    about = f"for one layer with {_ROWS[0]} and {_ROWS[1]} rows ({told})"
    if seconds["bfloat16"] > _MARGIN * seconds["float32"]:
        return NumberFormat("float32", f"clearly faster than bfloat16 {about}")
    return NumberFormat("bfloat16", f"float32 is not clearly faster {about}")


def fastest_of(config: Any, device: torch.device) -> NumberFormat:
    """``fastest_float`` of models of a transformers configuration, by one layer with random weights."""
    shape = copy.deepcopy(config)
    shape.num_hidden_layers = 1
    if kinds := getattr(shape, "layer_types", None):
        shape.layer_types = kinds[:1]
    with torch.device("meta"):
        model = AutoModel.from_config(shape)
    for parameter in model.layers[0].to_empty(device="cpu").parameters():
        nn.init.normal_(parameter, std=0.02)
    return fastest_float(model, device)


def apply_format(model: nn.Module, chosen: NumberFormat, device: torch.device, packed: bool | None) -> None:
    """Convert a model in place, on its device. ``packed``: projections fused, and linear weights in a layout of their
    own (``None``: where it pays; ``False``: the model as transformers makes it)."""
    decoder: Any = model.base_model
    on_cpu = chosen.name in INTEGERS and not chosen.on_gpu
    is_float = chosen.name not in quantising.GPU_FORMATS
    packs = is_float and (packed or (packed is None and can_pack(device, chosen.dtype)))
    kept = keep_stored_embedding(model) if on_cpu else None
    layers = decoder.layers if packed is False else fused_layers(model)
    # A layer's stacked weights are gone before the next one's are made.
    for part in itertools.chain(layers, [model]):
        if on_cpu:  # with 4 bits: not the output layer
            pack_linears(part, Int4Linear if chosen.name == "int4" and part is not model else Int8Linear)
        for parameter in part.parameters():  # not the buffers: rotary frequencies stay in float32
            if parameter is not kept:
                parameter.data = parameter.data.to(chosen.dtype)
        if packs:
            pack_linears(part)
    if chosen.on_gpu and not is_float:
        quantising.quantise(model, chosen.name)
    if packed is not False and kernels.run_on(device, chosen.dtype):
        use_kernels(model)
    if device.type == "cpu" and not any(isinstance(module, nn.Linear) for module in model.modules()):
        # What is left lies in the files of the weights, all of which one row of an embedding would keep in memory.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()


def _runs(name: str, device: torch.device) -> bool:
    if device.type == "cpu":
        return name == "float32" or can_pack(device, _TORCH[name])
    has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported()
    return name == ("bfloat16" if has_bfloat16 else "float32")


def _runner(linears: list[nn.Linear], dtype: torch.dtype, device: torch.device) -> Callable[[int], None]:
    """Runs all of the layers with so many rows."""
    layers = []
    for linear in linears:
        copied = copy.deepcopy(linear).to(device=device, dtype=dtype)
        layers.append((PackedLinear(copied) if can_pack(device, dtype) else copied, linear.in_features))
    inputs = {
        (rows, width): torch.ones(rows, width, dtype=dtype, device=device)
        for rows in _ROWS
        for _, width in layers
    }

    def run(rows: int) -> None:
        for layer, width in layers:
            layer(inputs[rows, width])

    return run


@torch.inference_mode()
def _timed(runners: Mapping[str, Callable[[int], None]], device: torch.device) -> dict[str, float]:
    """Seconds of each candidate: the fastest of several rounds in turn, since other work only adds to a round."""
    best: dict[tuple[str, int], float] = {}
    rounds, end = 0, time.perf_counter() + _SECONDS
    while rounds < _ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, run in runners.items():
            for rows in _ROWS:
                begun = time.perf_counter()
                run(rows)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                spent = time.perf_counter() - begun
                best[name, rows] = min(best.get((name, rows), spent), spent)
    return {name: sum(best[name, rows] for rows in _ROWS) for name in runners}
