"""The key-value cache: a fixed block of memory, a contiguous range for each slot, tokens in the order they are fed."""

import math
import mmap
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class LaneCache(Cache):
    """Keys and values of ``num_slots`` requests, ``slot_tokens`` tokens each (and one scratch token).

    All threads of a request share its slot. The mask says which token belongs to which thread, so
    a fork or a join moves nothing. Padding is written to the scratch token, which no mask ever shows.
    It has the key-value heads of one of ``shards`` equal parts of the model.
    Memory: 2 · layers · heads · num_slots · (slot_tokens + 1) · head_dim elements.
    """

    def __init__(
        self,
        config: Any,
        num_slots: int,
        slot_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        shards: int = 1,
    ) -> None:
        super().__init__(layers=[])
        self.num_slots, self.slot_tokens = num_slots, slot_tokens
        heads = config.num_key_value_heads // shards
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (heads, num_slots * (slot_tokens + 1), head_dim)
        # One tensor a layer: a stacked one is copied whole by compiled in-place writes.
        self.keys = [_zeros(shape, dtype, device) for _ in range(config.num_hidden_layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(config.num_hidden_layers)]
        self.before = self.index = torch.zeros(0, dtype=torch.long, device=device)
        self.window: Tensor | None = None
        self.flat: Tensor | None = None

    def place(self, before: Tensor, index: Tensor, window: Tensor, flat: Tensor | None = None) -> None:
        """Set where the next forward writes: ``index`` [B·Q] counts tokens over all slots.

        The B slots from number ``len(before)`` on are used; the last dimension of ``window`` is the number of tokens of
        each that are read. (Only the sizes of both tensors count: as tensors they stay variable in a traced forward.)
        ``flat`` [R] says which of the B·Q tokens the layers between attention get, in their order; None: all.
        """
        self.before, self.index, self.window, self.flat = before, index, window, flat

    def spread(self, states: Tensor) -> Tensor:
        """Scatter flat rows [1, R, width] to their places among all tokens [B, Q, width]; zeros elsewhere."""
        if self.flat is None:
            return states
        assert self.window is not None
        batch, _, queries, _ = self.window.shape
        out = states.new_zeros(batch * queries, states.shape[-1])
        return out.index_copy_(0, self.flat, states[0]).view(batch, queries, -1)

    def flatten(self, states: Tensor) -> Tensor:
        """Gather from all tokens [B, Q, width] the flat rows [1, R, width]."""
        return states if self.flat is None else states.flatten(0, 1).index_select(0, self.flat)[None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Write keys and values [B, H, Q, D]; return those of each slot's first T tokens [B, H, T, D]."""
        return self._write(self.keys[layer_idx], key_states), self._write(
            self.values[layer_idx], value_states
        )

    def clear(self, slot: int, first: int, stop: int) -> None:
        """Zero the tokens from place ``first`` up to ``stop`` of a slot.

        A mask hides a token from attention's weights only: not-a-number times zero is still not a number.
        """
        start = slot * (self.slot_tokens + 1)
        for block in (*self.keys, *self.values):
            block[:, start + first : start + stop].zero_()

    def copy(self, source: int, target: int, first: int, stop: int) -> None:
        """Copy the tokens from place ``first`` up to ``stop`` of one slot to the same places of another."""
        offset, start = source * (self.slot_tokens + 1), target * (self.slot_tokens + 1)
        for block in (*self.keys, *self.values):
            block[:, start + first : start + stop] = block[:, offset + first : offset + stop]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions and masks are given explicitly."""
        return 0

    def _write(self, block: Tensor, states: Tensor) -> Tensor:
        assert self.window is not None
        heads, _, head_dim = block.shape
        block.index_copy_(1, self.index, states.transpose(0, 1).reshape(heads, -1, head_dim))
        slots = block.view(heads, self.num_slots, self.slot_tokens + 1, head_dim).transpose(0, 1)
        first = self.before.shape[0]
        batch = slots[first : first + states.shape[0]]
        return batch[:, :, : self.window.shape[-1]]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On a CPU their memory is taken as it is written to: large slots cost what their requests fill of them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
