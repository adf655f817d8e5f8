"""Number formats of linear layers on a GPU, by torchao (the ``gpu`` extra), which is imported when one is asked for.

In all of them each row of activations has a scale of its own, or none: a row's result does not depend on its
neighbours.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

#: The least compute capability with products in each format.
GPU_FORMATS = {"int8": (8, 0), "fp8": (8, 9), "int4": (8, 0)}


def why_not(name: str, device: torch.device) -> str:
    """Say why this device cannot run the format; empty if it can."""
    if device.type != "cuda":
        return f"{name} runs on CUDA GPUs, not on {device.type}"
    if find_spec("torchao") is None:
        return "torchao is not installed (pip install 'pasta-platform[gpu]')"
    needed, found = GPU_FORMATS[name], torch.cuda.get_device_capability(device)
    if found < needed:
        return f"this GPU has compute capability {_version(found)}, and {name} takes {_version(needed)}"
    return ""


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def torchao_config(name: str) -> Any:
    """torchao's configuration of a format: ``fp8`` weights and activations, each row with a scale; ``int8`` and
    ``int4`` weights alone, with a scale for each output channel and for each 128 inputs."""
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
        PerRow,
    )

    if name == "fp8":
        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    if name == "int8":
        return Int8WeightOnlyConfig(set_inductor_config=False)
    # This layout is for torch's own 4-bit product; other layouts need a library of kernels.
    return Int4WeightOnlyConfig(int4_packing_format="tile_packed_to_4d", set_inductor_config=False)


def quantise(model: Any, name: str) -> None:
    """Convert the linear layers of the decoder in place.

    The output layer stays as it is: its width, a vocabulary with control tokens, suits no tile of these products.
    """
    from torchao.quantization import quantize_

    layers: nn.Module = model.base_model.layers
    quantize_(layers, torchao_config(name))
