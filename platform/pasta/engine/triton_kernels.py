"""Decoding kernels for GPUs, in Triton, which comes with torch's CUDA build: what stands between the linear layers.

They compute what the operators ``torch.ops.pasta`` of the same names compute on a CPU (``cpp/``), by the same
arguments. A layer is a dozen launches with them and three times as many without, of which each takes the GPU one or two
microseconds, however little it computes. Imported when a model is loaded on a GPU.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from pasta.engine.triton_masks import lay

__all__ = ["attend", "gated", "lay", "rms_norm", "try_out"]

#: Elements that one program of the elementwise kernels computes.
_BLOCK = 1024
#: Keys that attention reads at a time, and rows of queries: few lanes, or many.
_KEYS, _FEW_ROWS, _MANY_ROWS = 64, 16, 64


@triton.jit
def _rms_norm(x, weight, out, width, eps, block: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    there = at < width
    own = tl.load(x + row * width + at, mask=there, other=0.0).to(tl.float32)
    scale = tl.load(weight + at, mask=there, other=0.0)
    factor = 1.0 / tl.sqrt(tl.sum(own * own, axis=0) / width + eps)
    tl.store(out + row * width + at, own * factor * scale, mask=there)


@triton.jit
def _gated(gate_up, out, width, gelu: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    there = at < width
    x = tl.load(gate_up + 2 * row * width + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * width + at, mask=there, other=0.0).to(tl.float32)
    inner = x
    if gelu:  # x * (1 + tanh(u)) / 2 is x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
        inner = 1.5957691216 * x * (1.0 + 0.044715 * x * x)
    tl.store(out + row * width + at, x * tl.sigmoid(inner) * up, mask=there)


@triton.jit(do_not_specialize=["slot_places"])
def _turn_and_store(
    qkv,
    cos,
    sin,
    q_weight,
    k_weight,
    query,
    keys,
    values,
    places,
    slot_places,
    eps,
    q_heads: tl.constexpr,
    k_heads: tl.constexpr,
    dim: tl.constexpr,
    half_block: tl.constexpr,
    normed: tl.constexpr,
):
    """One head of one token: queries are normed, turned and kept in ``query``, keys likewise in the cache, where
    values go as they are."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = dim // 2
    at = tl.arange(0, half_block)
    there = at < half
    own = qkv + (row * (q_heads + 2 * k_heads) + head) * dim
    low = tl.load(own + at, mask=there, other=0.0).to(tl.float32)
    high = tl.load(own + half + at, mask=there, other=0.0).to(tl.float32)
    if head < q_heads + k_heads:
        if normed:
            weight = k_weight
            if head < q_heads:
                weight = q_weight
            squares = tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)
            factor = 1.0 / tl.sqrt(squares / dim + eps)
            low = low * factor * tl.load(weight + at, mask=there, other=0.0)
            high = high * factor * tl.load(weight + half + at, mask=there, other=0.0)
        turn = row * dim + at
        turned_low = low * tl.load(cos + turn, mask=there, other=0.0).to(tl.float32)
        turned_low -= high * tl.load(sin + turn, mask=there, other=0.0).to(tl.float32)
        turned_high = high * tl.load(cos + turn + half, mask=there, other=0.0).to(tl.float32)
        turned_high += low * tl.load(sin + turn + half, mask=there, other=0.0).to(tl.float32)
        low, high = turned_low, turned_high
    if head < q_heads:
        to = query + (row * q_heads + head) * dim
    else:
        place = tl.load(places + row)
        if head < q_heads + k_heads:
            to = keys + ((head - q_heads) * slot_places + place) * dim
        else:
            to = values + ((head - q_heads - k_heads) * slot_places + place) * dim
    tl.store(to + at, low, mask=there)
    tl.store(to + half + at, high, mask=there)


@triton.jit(do_not_specialize=["first", "width", "slot_places", "lanes", "visible", "part"])
def _attend(
    query,
    keys,
    values,
    mask,
    parts,
    largest,
    sums,
    first,
    width,
    slot_places,
    lanes,
    visible,
    part,
    scaling,
    softcap,
    k_heads: tl.constexpr,
    groups: tl.constexpr,
    dim: tl.constexpr,
    dim_block: tl.constexpr,
    rows_block: tl.constexpr,
    keys_block: tl.constexpr,
    capped: tl.constexpr,
):
    """Attention of some rows of one key head over ``part`` keys of a slot, not yet divided by the weights' sum.

    The rows of a key head are the queries of its first query head, then those of the next, as in attention.py.
    """
    number, pair = tl.program_id(0), tl.program_id(1)
    slot, head = pair // k_heads, pair % k_heads
    row = tl.program_id(2) * rows_block + tl.arange(0, rows_block)
    at, here = tl.arange(0, dim_block), tl.arange(0, keys_block)
    rows = groups * lanes
    is_row, is_dim = row < rows, at < dim
    lane, q_head = row % lanes, head * groups + row // lanes
    token = (slot * lanes + lane).to(tl.int64)
    own = tl.load(
        query + ((token * k_heads * groups + q_head) * dim)[:, None] + at[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    start = (head.to(tl.int64) * slot_places + (first + slot) * width) * dim
    top = tl.full((rows_block,), float("-inf"), tl.float32)
    total = tl.zeros((rows_block,), tl.float32)
    out = tl.zeros((rows_block, dim_block), tl.float32)
    for begin in range(number * part, min((number + 1) * part, visible), keys_block):
        key = begin + here
        is_key = key < visible
        block = start + key[:, None] * dim + at[None, :]
        is_there = is_key[:, None] & is_dim[None, :]
        k = tl.load(keys + block, mask=is_there, other=0.0)
        scores = tl.dot(own, tl.trans(k), input_precision="ieee") * scaling
        if capped:  # tanh(x) is 2 * sigmoid(2x) - 1
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        shown = tl.load(
            mask + (token * visible)[:, None] + key[None, :],
            mask=is_row[:, None] & is_key[None, :],
            other=0.0,
        )
        scores = tl.where(is_key[None, :], scores + shown.to(tl.float32), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top[:, None])
        v = tl.load(values + block, mask=is_there, other=0.0)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    to = (pair.to(tl.int64) * rows + row) * tl.num_programs(0) + number
    tl.store(parts + to[:, None] * dim + at[None, :], out, mask=is_row[:, None] & is_dim[None, :])
    tl.store(largest + to, top, mask=is_row)
    tl.store(sums + to, total, mask=is_row)


@triton.jit(do_not_specialize=["count", "lanes"])
def _join(
    parts,
    largest,
    sums,
    out,
    count,
    lanes,
    k_heads: tl.constexpr,
    groups: tl.constexpr,
    dim: tl.constexpr,
    dim_block: tl.constexpr,
):
    """Put the parts of a row of attention together."""
    row, pair = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, dim_block)
    is_dim = at < dim
    start = (pair.to(tl.int64) * groups * lanes + row) * count
    top = tl.load(largest + start)
    for number in range(1, count):
        top = tl.maximum(top, tl.load(largest + start + number))
    total = tl.load(sums + start) * 0.0
    joined = tl.zeros((dim_block,), tl.float32)
    for number in range(count):
        weight = tl.exp(tl.load(largest + start + number) - top)
        total += weight * tl.load(sums + start + number)
        joined += weight * tl.load(parts + (start + number) * dim + at, mask=is_dim, other=0.0)
    slot, head = pair // k_heads, pair % k_heads
    token = (slot * lanes + row % lanes).to(tl.int64)
    to = out + (token * k_heads * groups + head * groups + row // lanes) * dim
    tl.store(to + at, joined / total, mask=is_dim)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., width] divided by its root mean square, times ``weight`` [width] float32."""
    x, width = x.contiguous(), x.shape[-1]
    out, block = torch.empty_like(x), triton.next_power_of_2(width)
    _rms_norm[(x.numel() // width,)](
        x, weight, out, width, eps, block, num_warps=min(max(block // 512, 1), 16)
    )
    return out


def gated(gate_up: Tensor, gelu: bool) -> Tensor:
    """gate_up [..., 2 · width] to act(gate) · up [..., width]: SiLU, or GELU's tanh form."""
    gate_up, width = gate_up.contiguous(), gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    _gated[(out.numel() // width, triton.cdiv(width, _BLOCK))](gate_up, out, width, gelu, _BLOCK)
    return out


def attend(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    keys: Tensor,
    values: Tensor,
    places: Tensor,
    before: Tensor,
    width: int,
    mask: Tensor,
    flat: Tensor | None,
    groups: int,
    scaling: float,
    softcap: float,
) -> Tensor:
    """Attention of all heads [B, Q, H · D] from ``qkv`` [B, Q, (H + 2 H/G) · D], whose keys and values it writes to the
    cache [H/G, slots · width, D] at ``places`` [B · Q] first.

    ``cos`` and ``sin`` [B, Q, D]; ``mask`` additive [B, 1, Q, T]; queries and keys are normed by weights [D] float32,
    if there are any; ``softcap`` 0: none. The slots used are those from number ``len(before)`` on.
    """
    assert flat is None, "on a GPU all tokens are fed"
    batch, lanes, visible = qkv.shape[0], qkv.shape[1], mask.shape[-1]
    k_heads, slot_places, dim = keys.shape
    q_heads, tokens = k_heads * groups, batch * lanes
    query = qkv.new_empty(tokens, q_heads, dim)
    normed = q_weight is not None
    _turn_and_store[(tokens, q_heads + 2 * k_heads)](
        qkv.contiguous(),
        cos.expand(batch, lanes, dim).contiguous(),
        sin.expand(batch, lanes, dim).contiguous(),
        q_weight if normed else cos,
        k_weight if normed else cos,
        query,
        keys,
        values,
        places,
        slot_places,
        eps,
        q_heads,
        k_heads,
        dim,
        triton.next_power_of_2(dim // 2),
        normed,
        num_warps=1,
    )
    rows, pairs = groups * lanes, batch * k_heads
    rows_block = _FEW_ROWS if rows <= _FEW_ROWS else _MANY_ROWS
    # One key head's blocks would keep a few of the GPU's processors busy: so their keys are read in parts.
    programs, blocks = pairs * triton.cdiv(rows, rows_block), triton.cdiv(visible, _KEYS)
    part = _KEYS * triton.cdiv(blocks, max(1, min(blocks, 2 * _num_processors(qkv.device) // programs)))
    count, dim_block = triton.cdiv(visible, part), max(16, triton.next_power_of_2(dim))
    parts = qkv.new_empty(pairs * rows * count, dim, dtype=torch.float32)
    largest, sums = parts.new_empty(2, pairs * rows * count)
    _attend[(count, pairs, triton.cdiv(rows, rows_block))](
        query,
        keys,
        values,
        mask.contiguous(),
        parts,
        largest,
        sums,
        before.shape[0],
        width,
        slot_places,
        lanes,
        visible,
        part,
        scaling,
        softcap,
        k_heads,
        groups,
        dim,
        dim_block,
        rows_block,
        _KEYS // 2 if keys.element_size() * dim_block > 512 else _KEYS,
        softcap > 0,
        num_stages=2,
    )
    out = qkv.new_empty(batch, lanes, q_heads * dim)
    _join[(rows, pairs)](
        parts, largest, sums, out, count, lanes, k_heads, groups, dim, dim_block, num_warps=1
    )
    return out


def try_out(device: torch.device) -> None:
    """Compile and run one of the kernels. Raises what goes wrong."""
    rms_norm(torch.ones(1, 16, device=device), torch.ones(16, device=device), 1e-6)


@functools.cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count
