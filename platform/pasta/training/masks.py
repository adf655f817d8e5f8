"""Gives unmodified Hugging Face models their thread masks, made on the device.

A batch holds visibility in compact form (``segment_ids`` and ``sees``). A hook expands it to the mask that the
architecture takes, just before the backbone runs. Trainer and loss see an ordinary two-dimensional mask.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from pasta.engine.masks import expand, to_model_masks


def install_thread_masks(model: PreTrainedModel) -> RemovableHandle:
    """Make ``model`` accept ``segment_ids`` [B, S] and ``sees`` (bool [B, G, G]); ``position_ids`` must come too.

    Without them the model behaves as before. Install before PEFT or DeepSpeed wrap the model.
    """

    def make_mask(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        segment_ids, sees = kwargs.pop("segment_ids", None), kwargs.pop("sees", None)
        if segment_ids is None or sees is None:
            return args, kwargs
        device = segment_ids.device.type
        # Attention runs in autocast's format, in which the least value of the weights' may be infinite.
        dtype = (
            torch.get_autocast_dtype(device)
            if torch.is_autocast_enabled(device)
            else next(module.parameters()).dtype
        )
        kwargs["attention_mask"] = thread_mask(model.config, segment_ids, sees, kwargs["position_ids"], dtype)
        return args, kwargs

    backbone = model.base_model
    assert isinstance(backbone, nn.Module)
    return backbone.register_forward_pre_hook(make_mask, with_kwargs=True)


def thread_mask(
    config: Any, segment_ids: Tensor, sees: Tensor, position_ids: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """The additive attention mask [B, 1, S, S] of a batch, or the dict of them that sliding-window families take."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)  # [B, S]
    visible = expand(sees, segment_ids, segment_ids, index, index)  # [B, S, S]
    return to_model_masks(config, visible, position_ids, position_ids, dtype)
