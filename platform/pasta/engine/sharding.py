"""A rank's part of a model: plain layers of its part of the weights, which add up and gather over the ranks.

transformers' ``tp_plan`` of the model says which weights are cut and how, and each rank reads only its own parts.
transformers' own layers convert between distributed and local tensors at each call; these hold local ones, so that they
are fused and packed like those of a whole model.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from pasta.engine.ranks import Ranks
from pasta.errors import UserError

_GATHERED = ("colwise_gather_output", "colwise_rep")


class SummedLinear(nn.Module):
    """A layer cut along its inputs: each rank's product is a part of the sum."""

    def __init__(self, linear: nn.Linear, ranks: Ranks) -> None:
        super().__init__()
        self._bias = linear.bias
        linear.register_parameter("bias", None)  # the bias is added once, to the sum
        self.part = linear
        self._group = ranks.sums

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in / ranks] to [..., out]."""
        out: Tensor = self.part(x).contiguous()
        dist.all_reduce(out, group=self._group)
        return out if self._bias is None else out + self._bias


class GatheredLinear(nn.Module):
    """A layer cut along its ``width`` outputs, of which every rank gets all: the output layer."""

    def __init__(self, linear: nn.Linear, width: int, ranks: Ranks) -> None:
        super().__init__()
        self.part, self._width = linear, width
        self._group, self._size = ranks.sums, ranks.size

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Q, in] to [B, Q, width]."""
        out: Tensor = self.part(x)
        each = -(-self._width // self._size)  # the last rank's part may be smaller
        mine = F.pad(out, (0, each - out.shape[-1])).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(parts, mine, group=self._group)
        return torch.cat(parts, dim=-1)[..., : self._width]


class SummedEmbedding(nn.Module):
    """An embedding cut along the vocabulary, where the output layer shares its weights."""

    def __init__(self, embedding: nn.Embedding, first: int, ranks: Ranks) -> None:
        super().__init__()
        # Numbered as in the whole one, so that this part may lack it. It matters to gradients only.
        embedding.padding_idx = None
        self.part, self._first = embedding, first
        self._group = ranks.sums

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, Q] to [B, Q, hidden]."""
        own, rows = tokens - self._first, self.part.weight.shape[0]
        inside = (own >= 0) & (own < rows)
        out: Tensor = self.part(own.clamp(0, max(rows - 1, 0))) * inside[..., None]
        dist.all_reduce(out, group=self._group)
        return out


def use_local_parts(model: Any, ranks: Ranks) -> None:
    """Replace the layers that transformers has cut by ones of this rank's parts, in place.

    Raises ``UserError`` if the model's plan cuts anything in a way that is not known here.
    """
    plan = model.tp_plan
    # By the whole module's id, which is kept: the embedding may share the output layer's weights.
    local: dict[int, tuple[DTensor, nn.Parameter]] = {}
    for name, module in list(model.named_modules()):
        cut = {key: p for key, p in module.named_parameters(recurse=False) if isinstance(p, DTensor)}
        if not cut:
            continue
        weight = cut.get("weight")
        for key, whole in cut.items():
            if id(whole) not in local:
                local[id(whole)] = whole, nn.Parameter(whole.to_local(), requires_grad=False)
            setattr(module, key, local[id(whole)][1])
        style, (placement,) = _style(plan, name), (weight.placements if weight is not None else (None,))
        module.__dict__.pop("forward", None)  # transformers' own, for distributed tensors
        if weight is None or not isinstance(placement, Shard | Replicate):
            raise UserError(
                f"tensor_parallel: {name} is cut as {style!r}, which is not known here; expected 1"
            )
        whole_rows = weight.shape[0]
        new: nn.Module
        if isinstance(module, nn.Embedding) and placement == Shard(0):
            new = SummedEmbedding(module, ranks.rank * -(-whole_rows // ranks.size), ranks)
        elif isinstance(module, nn.Linear) and placement == Shard(1):
            module.in_features = module.weight.shape[1]
            new = SummedLinear(module, ranks)
        elif isinstance(module, nn.Linear) and placement == Shard(0):
            module.out_features = module.weight.shape[0]
            new = GatheredLinear(module, whole_rows, ranks) if style in _GATHERED else module
        else:
            raise UserError(
                f"tensor_parallel: {name} is cut as {style!r}, which is not known here; expected 1"
            )
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, new)


def _style(plan: dict[str, str], name: str) -> str:
    """The plan's style of a module: its names have * for a layer's number."""
    generic = ".".join("*" if part.isdecimal() else part for part in name.split("."))
    return plan.get(generic, "")
