"""Fuses the projections of a layer that read the same input, and, with kernels, the small operators around them.

A decoder layer of transformers makes queries, keys and values by three products, and gate and up by two. Here each
group is one product over stacked weights: fewer operators, and activations are quantised once for all of them. The
values are the same; the rest of the model stays transformers' own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from pasta.engine import kernels
from pasta.engine.attention import grouped_attention
from pasta.engine.families import depends_on_length
from pasta.engine.packing import Packed

#: Activations between gate and up that have a kernel, by transformers' class; the value says whether it is GELU.
_GATES = {"SiLUActivation": False, "SiLU": False, "GELUTanh": True, "PytorchGELUTanh": True}


class FusedAttention(nn.Module):
    """Replaces a layer's attention: one product for queries, keys and values."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.qkv_proj = _stacked(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj = attention.o_proj
        self.q_norm, self.k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.num_key_value_groups: int = attention.num_key_value_groups
        self.scaling: float = attention.scaling
        keys = attention.k_proj.out_features // self.head_dim
        self._heads = [attention.q_proj.out_features // self.head_dim, keys, keys]
        config = attention.config
        self._softcap = config.attn_logit_softcapping if config.model_type == "gemma2" else None
        self.use_kernels = False

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        past_key_values: Any = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [B, Q, hidden], or flat [1, R, hidden], to the layer's attention output of the same shape."""
        qkv, (cos, sin) = self.qkv_proj(hidden_states), position_embeddings
        if past_key_values is not None and _runs_kernels(self):
            return self.o_proj(self._attend(qkv, cos, sin, attention_mask, past_key_values)), None
        if past_key_values is not None:
            qkv, cos, sin = (past_key_values.spread(x) for x in (qkv, cos, sin))
        heads = qkv.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H + 2 H/G, Q, D]
        query, key, value = heads.split(self._heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        out, _ = grouped_attention(
            self, query, key, value, attention_mask, scaling=self.scaling, softcap=self._softcap
        )
        out = out.flatten(2)
        return self.o_proj(out if past_key_values is None else past_key_values.flatten(out)), None

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: Any) -> Tensor:
        q_norm, k_norm = self.q_norm, self.k_norm
        out: Tensor = kernels.operators(qkv.device).attend(
            qkv,
            cos,
            sin,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            0.0 if q_norm is None else q_norm.eps,
            cache.keys[self.layer_idx],
            cache.values[self.layer_idx],
            cache.index,
            cache.before,
            cache.slot_tokens + 1,
            mask,
            cache.flat,
            self.num_key_value_groups,
            self.scaling,
            self._softcap or 0.0,
        )
        return out


class FusedMLP(nn.Module):
    """Replaces a layer's MLP: one product for gate and up."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _stacked(mlp.gate_proj, mlp.up_proj)
        self.down_proj, self.act_fn = mlp.down_proj, mlp.act_fn
        self.use_kernels = False

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] to the same shape."""
        gelu = _GATES.get(type(self.act_fn).__name__)
        if gelu is None or not _runs_kernels(self):
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
            inner = self.act_fn(gate) * up
        elif isinstance(self.gate_up_proj, Packed) and self.gate_up_proj.can_gate:
            inner = self.gate_up_proj.gated(x, gelu)
        else:
            inner = kernels.operators(x.device).gated(self.gate_up_proj(x), gelu)
        out: Tensor = self.down_proj(inner)
        return out


class KernelNorm(nn.Module):
    """Replaces a root-mean-square norm by one operator. Gemma's scale by 1 + weight."""

    weight: Tensor

    def __init__(self, norm: Any) -> None:
        super().__init__()
        scale_from_one = type(norm).__name__.startswith("Gemma")
        weight = norm.weight.detach().float() + (1.0 if scale_from_one else 0.0)
        self.register_buffer("weight", weight, persistent=False)
        self.eps: float = norm.eps if scale_from_one else norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] to the same shape."""
        if torch.compiler.is_compiling():  # see _runs_kernels
            return rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)
        out: Tensor = kernels.operators(x.device).rms_norm(x, self.weight, self.eps)
        return out


class KernelRotary(nn.Module):
    """Replaces a rotary embedding whose frequencies do not change by one operator.

    Only on CPUs, where nothing is compiled.
    """

    inv_freq: Tensor

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.register_buffer("inv_freq", rotary.inv_freq.float(), persistent=False)
        self.scaling = float(rotary.attention_scaling)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B, Q] to cosines and sines [B, Q, head_dim] in the type of ``x``."""
        cos, sin = kernels.operators(x.device).rotary(position_ids, self.inv_freq, self.scaling, x.dtype)
        return cos, sin


def fuse_projections(model: Any) -> None:
    """Stack the projections of every decoder layer of ``model``, in place, one layer after another to save memory."""
    for layer in model.base_model.layers:
        layer.self_attn = FusedAttention(layer.self_attn)
        layer.mlp = FusedMLP(layer.mlp)


def use_kernels(model: nn.Module) -> None:
    """Replace what stands between the linear layers of a fused model by kernels, in place."""
    for name, child in model.named_children():
        if type(child).__name__.endswith("RMSNorm"):
            setattr(model, name, KernelNorm(child))
        elif _is_static_rotary(child):
            setattr(model, name, KernelRotary(child))
        else:
            use_kernels(child)
    if isinstance(model, FusedAttention | FusedMLP):
        model.use_kernels = True


def attends_by_kernels(model: nn.Module) -> bool:
    """Whether every attention of ``model`` runs on the kernels."""
    attention = [module for module in model.modules() if isinstance(module, FusedAttention)]
    return bool(attention) and all(module.use_kernels for module in attention)


def computes_by_kernels(model: nn.Module) -> bool:
    """Whether the kernels for this CPU compute all of ``model`` that takes long: attention and linear layers."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear | Packed)]
    return attends_by_kernels(model) and all(isinstance(each, Packed) and each.by_kernel for each in linears)


def whole_rows(model: nn.Module) -> int:
    """The most rows that one slot may have in a forward such that no row's result depends on its neighbours; 0 if there
    is no such number.

    The kernels compute rows one by one (``cpp/attention.h``: ``kFewRows``); other products do not.
    """
    plain = any(type(module) is nn.Linear for module in model.modules())
    return 64 if attends_by_kernels(model) and not plain else 0


def _is_static_rotary(module: Any) -> bool:
    """Whether ``module`` is a rotary embedding with one set of frequencies, whatever the length, where there is a
    kernel for it: GPUs have none."""
    frequencies = getattr(module, "inv_freq", None)
    return (
        type(module).__name__.endswith("RotaryEmbedding")
        and frequencies is not None
        and hasattr(kernels.operators(frequencies.device), "rotary")
        and not depends_on_length(module.config)
    )


def _runs_kernels(module: Any) -> bool:
    """Whether ``module`` runs on the kernels: not where torch.compile, which fuses small operators itself, reads it."""
    return bool(module.use_kernels) and not torch.compiler.is_compiling()


def _stacked(*linears: nn.Linear) -> nn.Linear:
    """One linear layer that computes the outputs of several, one after another."""
    first = linears[0]
    with torch.device("meta"):
        made = nn.Linear(first.in_features, sum(linear.out_features for linear in linears), bias=False)
    made.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]), requires_grad=False)
    if first.bias is not None:
        made.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
    return made
