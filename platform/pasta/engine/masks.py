"""Expands segments to attention masks, the same way for training, decoding and remote chunks.

A token's visibility is ``sees[segment(q), segment(k)]`` and, within a segment, causal (DESIGN section 3).
"""

from typing import Any

import torch
from torch import Tensor

#: Families whose forward takes ``{"full_attention": …, "sliding_attention": …}``; others take one tensor.
_DICT_FAMILIES = frozenset({"ministral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo3", "smollm3"})
#: Families whose layers may have a window. The forward of others ignores one in their configuration.
_WINDOW_FAMILIES = _DICT_FAMILIES | {"mistral", "ministral3", "phi3"}


def expand(sees: Tensor, q_seg: Tensor, k_seg: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
    """Expand segment visibility to the keys that each query sees: bool [B, Q, K].

    ``sees`` bool [B, S, S]; ``q_seg`` [B, Q] and ``k_seg`` [B, K] are segment numbers, negative for
    padding, which sees nothing and is seen by nothing; ``q_index``, ``k_index`` order the tokens of a
    segment. Segments other than the query's own are visible whole or not at all.
    """
    batch = torch.arange(sees.shape[0], device=sees.device)[:, None, None]
    q, k = q_seg[:, :, None], k_seg[:, None, :]
    visible = sees[batch, q.clamp(min=0), k.clamp(min=0)]
    causal = (q != k) | (k_index[:, None, :] <= q_index[:, :, None])
    return visible & causal & (q >= 0) & (k >= 0)


def sliding_window(config: Any) -> int | None:
    """The window of a model's sliding-attention layers in positions; ``None`` if it has none."""
    window = getattr(config, "sliding_window", None) if config.model_type in _WINDOW_FAMILIES else None
    if not window or not getattr(config, "use_sliding_window", True):
        return None
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return int(window)


def within_window(visible: Tensor, q_pos: Tensor, k_pos: Tensor, window: int) -> Tensor:
    """``visible`` [B, Q, K] cut to keys less than ``window`` positions away; q_pos [B, Q], k_pos [B, K].

    The window is measured in positions, either way: a joined chunk that outgrew its estimate may hold
    positions past its reader's.
    """
    distance = q_pos[:, :, None] - k_pos[:, None, :]
    return visible & (distance.abs() < window)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask [B, Q, K] as an additive one [B, 1, Q, K]: 0 where visible, else the least value.

    The least finite value rather than -inf: a row that sees nothing (padding) must not become NaN.
    """
    least = torch.finfo(dtype).min
    return torch.where(visible[:, None], 0.0, least).to(dtype)


def to_model_masks(
    config: Any, visible: Tensor, q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """The ``attention_mask`` that a transformers model of this configuration takes for ``visible``.

    One additive tensor [B, 1, Q, K], or a dictionary of two for families whose layers alternate between
    full and sliding attention.
    """
    return as_model_takes(config, *both_masks(config, visible, q_pos, k_pos, dtype))


def both_masks(
    config: Any, visible: Tensor, q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Additive masks of all keys and of those within the window; the same tensor twice where a model takes one."""
    window = sliding_window(config)
    if window is None:
        full = additive(visible, dtype)
        return full, full
    windowed = additive(within_window(visible, q_pos, k_pos, window), dtype)
    # A batch's mask is large: no other is made where the model takes one.
    return additive(visible, dtype) if config.model_type in _DICT_FAMILIES else windowed, windowed


def as_model_takes(config: Any, full: Tensor, windowed: Tensor) -> Tensor | dict[str, Tensor]:
    """Additive masks of all keys and of those within the window, in the form that a model of this configuration
    takes."""
    if config.model_type in _DICT_FAMILIES:
        return {"full_attention": full, "sliding_attention": windowed}
    return windowed
