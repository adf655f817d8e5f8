"""Attention in which the queries of a group share their key head without a copy of it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

#: The name under which transformers finds ``grouped_attention`` (``attn_implementation``).
GROUPED = "pasta_grouped"


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' attention layers call it; returns the output [B, Q, H, D] and no weights.

    ``query`` is [B, H, Q, D], ``key`` and ``value`` [B, H/G, T, D], ``attention_mask`` additive [B, 1, Q, T].
    transformers' own function copies keys and values G times as soon as there is a mask and more than one query. Here
    the G·Q queries of a key head are rows of one product. ``softcap`` is Gemma 2's: a score becomes
    cap · tanh(score / cap).
    """
    groups: int = module.num_key_value_groups
    batch, heads, _, dim = query.shape
    # The rows of a key head: first all queries of its first query head, then those of the next.
    rows = query.reshape(batch, heads // groups, -1, dim)  # [B, H/G, G·Q, D]
    mask = attention_mask.repeat(1, 1, groups, 1)  # [B, 1, G·Q, T]
    if softcap is None:
        out = scaled_dot_product_attention(rows, key, value, mask, dropout, scale=scaling)
    else:
        out = _softcapped(rows, key, value, mask, dim**-0.5 if scaling is None else scaling, softcap)
    return out.reshape(batch, heads, -1, dim).transpose(1, 2).contiguous(), None


def _softcapped(
    rows: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float
) -> Tensor:
    scores = torch.tanh(rows @ key.transpose(2, 3) * scaling / softcap) * softcap + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(rows.dtype) @ value


AttentionInterface.register(GROUPED, grouped_attention)
# There is always a mask, and it is additive: the function cannot know otherwise what is causal.
AttentionMaskInterface.register(GROUPED, eager_mask)
