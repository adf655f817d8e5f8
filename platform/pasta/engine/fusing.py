"""Fuses the projections of a layer that read the same input, and, with kernels, the small operators around them.

A decoder layer of transformers makes queries, keys and values by three products, and gate and up by two. Here each
group is one product over stacked weights: fewer operators, and activations are quantised once for all of them. The
values are the same; the rest of the model stays transformers' own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from pasta.engine import kernels
from pasta.engine.attention import grouped_attention
from pasta.engine.packing import Packed
from pasta.engine.rotary import KernelRotary, TypedRotary, WholeRotary, has_kernel, rotary_dim, rotary_order

#: Activations between gate and up that have a kernel, by transformers' class; the value says whether it is GELU.
_GATES = {"SiLUActivation": False, "SiLU": False, "GELUTanh": True, "PytorchGELUTanh": True}
#: Numbers of a head that the kernels have registers for (``cpp/query_heads.h``: ``kMostVectors``).
_MOST_HEAD_DIM = 512


class FusedAttention(nn.Module):
    """Replaces a layer's attention: one product for queries, keys and values.

    ``turned`` is how many numbers of a head the rotary embedding turns, the first ones. Where that is not all of them
    (Phi 3), queries and keys are put in the order of ``rotary_order``.
    """

    def __init__(self, attention: Any, turned: int) -> None:
        super().__init__()
        config = attention.config
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.num_key_value_groups: int = attention.num_key_value_groups
        self.scaling: float = attention.scaling
        if hasattr(attention, "qkv_proj"):  # Phi 3 has them as one product
            self.qkv_proj = attention.qkv_proj
        else:
            self.qkv_proj = _stacked(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj = attention.o_proj
        heads = self.qkv_proj.out_features // self.head_dim
        keys = heads // (self.num_key_value_groups + 2)
        self._heads = [heads - 2 * keys, keys, keys]
        if turned < self.head_dim:
            order = rotary_order(turned, self.head_dim)
            weight = self.qkv_proj.weight.detach().unflatten(0, (heads, self.head_dim))
            ordered = torch.cat([weight[:-keys, order], weight[-keys:]])
            self.qkv_proj.weight = nn.Parameter(ordered.flatten(0, 1), requires_grad=False)
        q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        # OLMo's are of all heads together.
        by_head = q_norm is not None and q_norm.weight.numel() == self.head_dim
        self.q_norm, self.k_norm = (q_norm, k_norm) if by_head else (None, None)
        self.all_q_norm, self.all_k_norm = (None, None) if by_head else (q_norm, k_norm)
        self._turns: bool = getattr(attention, "use_rope", True)  # some layers of SmolLM 3 know no positions
        self._softcap = config.attn_logit_softcapping if config.model_type == "gemma2" else None
        self._growth = None
        if config.model_type == "ministral3":
            known = config.rope_parameters
            self._growth = known["llama_4_scaling_beta"], known["original_max_position_embeddings"]
        self.use_kernels = False

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [B, Q, hidden], or flat [1, R, hidden], to the layer's attention output of the same shape."""
        qkv, (cos, sin) = self._projected(hidden_states, position_ids), position_embeddings
        if not self._turns:
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
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

    def _projected(self, hidden_states: Tensor, position_ids: Tensor | None) -> Tensor:
        """Queries, keys and values [..., (H + 2 H/G) · D], with what a family does to all heads of a row at once."""
        qkv: Tensor = self.qkv_proj(hidden_states)
        if self.all_q_norm is None and self._growth is None:
            return qkv
        query, key, value = qkv.split([number * self.head_dim for number in self._heads], dim=-1)
        if self.all_q_norm is not None and self.all_k_norm is not None:
            query, key = self.all_q_norm(query), self.all_k_norm(key)
        if self._growth is not None:  # the rotary embedding turns a longer query the same way
            scale = get_llama_4_attn_scale(position_ids, *self._growth)[:, 0]
            query = query * scale.to(query.dtype)
        return torch.cat([query, key, value], dim=-1)

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
        is_phi3 = hasattr(mlp, "gate_up_proj")
        self.gate_up_proj = mlp.gate_up_proj if is_phi3 else _stacked(mlp.gate_proj, mlp.up_proj)
        self.down_proj, self.act_fn = mlp.down_proj, mlp.activation_fn if is_phi3 else mlp.act_fn
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


def fused_layers(model: Any) -> Iterator[nn.Module]:
    """The decoder layers of ``model``, each as its projections have been stacked in place. Whoever packs a layer before
    he asks for the next keeps one stacked layer in memory at a time."""
    base = model.base_model
    turned, head_dim = rotary_dim(base.rotary_emb), base.layers[0].self_attn.head_dim
    if turned < head_dim:
        base.rotary_emb = WholeRotary(base.rotary_emb, head_dim)
    if type(base.rotary_emb).__name__.startswith("Olmo"):
        base.rotary_emb = TypedRotary(base.rotary_emb)
    for layer in base.layers:
        layer.self_attn = FusedAttention(layer.self_attn, turned)
        layer.mlp = FusedMLP(layer.mlp)
        yield layer


def use_kernels(model: nn.Module) -> None:
    """Replace what stands between the linear layers of a fused model by kernels, in place."""
    for name, child in model.named_children():
        if type(child).__name__.endswith("RMSNorm"):
            setattr(model, name, KernelNorm(child))
        elif has_kernel(child):
            setattr(model, name, KernelRotary(child))
        else:
            use_kernels(child)
    if isinstance(model, FusedMLP):
        model.use_kernels = True
    elif isinstance(model, FusedAttention):
        model.use_kernels = model.head_dim <= _MOST_HEAD_DIM


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
