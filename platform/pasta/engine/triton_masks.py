"""The kernels for GPUs (triton_kernels.py) that make attention masks of a step, from segments."""

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Keys, or tokens, that one program computes.
_BLOCK = 1024


@triton.jit(do_not_specialize=["first", "width", "queries", "fed"])
def _note(inputs, key_segments, key_positions, places, first, width, queries, fed, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    there = at < fed
    place = (first + at // queries) * width + tl.load(inputs + 3 * fed + at, mask=there, other=0)
    tl.store(key_positions + place, tl.load(inputs + fed + at, mask=there, other=0), mask=there)
    tl.store(key_segments + place, tl.load(inputs + 2 * fed + at, mask=there, other=0), mask=there)
    tl.store(places + at, place, mask=there)


@triton.jit(do_not_specialize=["first", "width", "segments", "queries", "fed", "visible", "window"])
def _mask(
    inputs,
    key_segments,
    key_positions,
    sees,
    full,
    windowed,
    first,
    width,
    segments,
    queries,
    fed,
    visible,
    window,
    least,
    two: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0)
    key = tl.program_id(1) * block + tl.arange(0, block)
    there = key < visible
    slot = first + token // queries
    position, segment = tl.load(inputs + fed + token), tl.load(inputs + 2 * fed + token)
    key_segment = tl.load(key_segments + slot * width + key, mask=there, other=-1)
    key_position = tl.load(key_positions + slot * width + key, mask=there, other=0)
    known = there & (segment >= 0) & (key_segment >= 0)
    row = (slot.to(tl.int64) * segments + tl.maximum(segment, 0)) * segments
    seen = tl.load(sees + row + tl.maximum(key_segment, 0), mask=known, other=0) != 0
    seen = known & seen & ((key_segment != segment) | (key_position <= position))
    to = token.to(tl.int64) * visible + key
    tl.store(full + to, tl.where(seen, 0.0, least), mask=there)
    if two:
        near = seen & (tl.abs(position - key_position) < window)
        tl.store(windowed + to, tl.where(near, 0.0, least), mask=there)


def lay(
    inputs: Tensor,
    key_segments: Tensor,
    key_positions: Tensor,
    sees: Tensor,
    first: int,
    batch: int,
    queries: int,
    keys: int,
    flat: int,
    window: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Note where the tokens of a step go, and make its masks: see ``lay`` in ``cpp/masks.h``."""
    assert flat == 0, "on a GPU all tokens are fed"
    fed, width = batch * queries, key_segments.shape[1]
    tokens, positions = inputs[: 2 * fed].view(2, batch, queries)
    places = inputs.new_empty(fed)
    _note[(triton.cdiv(fed, _BLOCK),)](
        inputs, key_segments, key_positions, places, first, width, queries, fed, _BLOCK
    )
    full = inputs.new_empty(batch, 1, queries, keys, dtype=dtype)
    windowed = torch.empty_like(full) if window else full
    _mask[(fed, triton.cdiv(keys, _BLOCK))](
        inputs,
        key_segments,
        key_positions,
        sees.view(torch.uint8),
        full,
        windowed,
        first,
        width,
        sees.shape[-1],
        queries,
        fed,
        keys,
        window,
        torch.finfo(dtype).min,
        window > 0,
        _BLOCK,
    )
    return tokens, positions, places, full, windowed
