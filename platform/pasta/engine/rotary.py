"""Rotary position embeddings as the engine runs them: at one set of frequencies, over whole heads, by a kernel."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from pasta.engine import kernels


def settle_rotary(model: Any) -> None:
    """Let the rotary embeddings of ``model`` keep the frequencies that they begin with.

    With dynamic and longrope scaling transformers looks at each forward whether it reaches past the positions of
    ``families.context_positions``, which none here does.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            kinds = module.rope_type
            module.rope_type = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"


def rotary_dim(rotary: nn.Module) -> int:
    """How many numbers of a head a rotary embedding turns."""
    return next(2 * each.numel() for name, each in rotary.named_buffers() if name.endswith("inv_freq"))


def rotary_order(turned: int, head_dim: int) -> list[int]:
    """The numbers of a head, of which the first ``turned`` are turned, such that each stands half a head away from its
    partner, as in a head that is turned whole. Scores stay what they are: queries and keys change alike."""
    first, still = turned // 2, (turned + head_dim) // 2
    return [*range(first), *range(turned, still), *range(first, turned), *range(still, head_dim)]


class KernelRotary(nn.Module):
    """Replaces a rotary embedding by one operator. Only on CPUs, where nothing is compiled."""

    inv_freq: Tensor

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.register_buffer("inv_freq", rotary.inv_freq.float(), persistent=False)
        self.scaling = float(rotary.attention_scaling)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B, Q] to cosines and sines [B, Q, head_dim] in the type of ``x``."""
        cos, sin = kernels.operators(x.device).rotary(position_ids, self.inv_freq, self.scaling, x.dtype)
        return cos, sin


class TypedRotary(nn.Module):
    """Replaces a rotary embedding that answers in float32 whatever the model's type is, and leaves it to its own
    attention to convert what it has turned."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor, *layer_type: str) -> tuple[Tensor, Tensor]:
        """Positions [B, Q] to cosines and sines [B, Q, head_dim] in the type of ``x``."""
        cos, sin = self.rotary(x, position_ids, *layer_type)
        return cos.to(x.dtype), sin.to(x.dtype)


class WholeRotary(nn.Module):
    """Replaces a rotary embedding that turns only a part of each head, for heads in the order of ``rotary_order``:
    what it leaves alone is turned by no angle."""

    def __init__(self, rotary: Any, head_dim: int) -> None:
        super().__init__()
        self.rotary, self._head_dim = rotary, head_dim

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B, Q] to cosines and sines [B, Q, head_dim] in the type of ``x``."""
        cos, sin = self.rotary(x, position_ids=position_ids)
        return self._widened(cos, 1.0), self._widened(sin, 0.0)

    def _widened(self, turns: Tensor, still: float) -> Tensor:
        halves = turns.unflatten(-1, (2, -1))
        return F.pad(halves, (0, self._head_dim // 2 - halves.shape[-1]), value=still).flatten(-2)


def has_kernel(module: Any) -> bool:
    """Whether ``module`` is a rotary embedding with one set of frequencies where there is a kernel for it: GPUs have
    none."""
    frequencies = getattr(module, "inv_freq", None)
    return (
        type(module).__name__.endswith("RotaryEmbedding")
        and frequencies is not None
        and hasattr(kernels.operators(frequencies.device), "rotary")
    )
