"""The kernels for this CPU compute what torch does, a row alone as beside others, and nothing needs them."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from pasta.engine import kernels
from pasta.engine.fusing import FusedAttention, FusedMLP, KernelNorm, use_kernels
from pasta.engine.masks import additive, expand, within_window
from pasta.engine.packing import Int4Linear, Int8Linear, PackedLinear, pack_linears
from pasta.engine.rotary import KernelRotary
from pasta.engine.sampling import NO_PROMISE, gumbel, likeliest, likeliest_permitted, permit
from tests.support.kernels import built, needs_kernels

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def library():
    built()


def linear(name, inputs=96, outputs=70, bias=True):
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    if made := {"int8": Int8Linear, "int4": Int4Linear}.get(name):
        return made(layer)
    return PackedLinear(layer.to(getattr(torch, name)))


def formats():
    return ["float32", "int8", *(["bfloat16"] if kernels.runs(torch.bfloat16) else [])]


@pytest.mark.parametrize("name", formats())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(96, 70), (1300, 64), (4, 1), (2052, 130), (1536, 70)])
def test_a_layer_computes_what_torch_does(name, bias, inputs, outputs):
    layer = linear(name, inputs, outputs, bias)
    assert layer._outputs == outputs, "the kernel serves it"
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    torch.manual_seed(1)
    x = torch.randn(6, 3, inputs)
    expected = plain(x)
    error = (layer(x.to(torch.bfloat16) if name == "bfloat16" else x).float() - expected).abs().max()
    assert error <= {"float32": 1e-5, "bfloat16": 2e-2, "int8": 4e-2}[name] * max(
        1.0, expected.abs().max().item()
    )


@pytest.mark.parametrize(
    ("name", "inputs"),
    # 1,536 is a whole number of AMX's tiles.
    [*((name, inputs) for name in formats() for inputs in (1300, 1536)), ("int4", 1312), ("int4", 1536)],
)
def test_a_row_is_the_same_alone_and_beside_an_outlier(name, inputs):
    layer = linear(name, inputs, 70)
    x = torch.randn(23, inputs, dtype=torch.bfloat16 if name == "bfloat16" else torch.float32)
    x[4] *= 1000
    together = layer(x)
    for row in range(len(x)):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("inputs", [95, 97])
def test_a_width_that_a_kernel_does_not_read_is_left_to_torch(inputs):
    model = nn.Sequential(nn.Linear(inputs, 8)).requires_grad_(False).to(torch.bfloat16)
    x = torch.randn(3, inputs, dtype=torch.bfloat16)
    expected = model(x)
    pack_linears(model)
    assert not getattr(model[0], "_outputs", 0)
    torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("made", [Qwen3RMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("width", [8, 64, 100])
def test_a_norm_computes_what_transformers_own_does(made, width, dtype):
    torch.manual_seed(0)
    norm = made(width, eps=1e-5).requires_grad_(False)
    norm.weight.copy_(torch.randn(width))
    x = torch.randn(3, 5, width).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(KernelNorm(norm)(x), norm.to(dtype)(x), rtol=tolerance, atol=tolerance)


def rotary(**scaling):
    return LlamaRotaryEmbedding(LlamaConfig(head_dim=24, rope_parameters={"rope_theta": 1e4} | scaling))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, YARN], ids=["default", "yarn"])
def test_rotary_angles_are_what_transformers_own_are(scaling, dtype):
    plain, x = rotary(**scaling), torch.zeros(1, dtype=dtype)
    positions = torch.tensor([[0, 1, 2047], [5, 3, 100_000]])
    expected, tolerance = plain(x, positions), 1e-6 if dtype == torch.float32 else 4e-3
    for turned, wanted in zip(KernelRotary(plain)(x, positions), expected, strict=True):
        assert turned.dtype == dtype
        torch.testing.assert_close(turned, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("width", [48, 50])
def test_a_gate_computes_what_torch_does(gelu, width):
    x = torch.randn(3, 2 * width) * 20
    gate, up = x.chunk(2, dim=-1)
    act = nn.functional.gelu(gate, approximate="tanh") if gelu else nn.functional.silu(gate)
    torch.testing.assert_close(torch.ops.pasta.gated(x, gelu), act * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*formats(), "int4"])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("rows", "bias"), [(1, False), (7, True), (64, False)])
def test_a_gated_layer_is_the_layer_and_then_the_gate(name, gelu, rows, bias):
    layer = linear(name, 96, 384, bias)
    x = torch.randn(rows, 96, dtype=layer._takes)
    assert torch.equal(layer.gated(x, gelu), torch.ops.pasta.gated(layer(x), gelu))


def test_a_gated_layer_has_halves_of_whole_blocks():
    layer = linear("float32", 96, 192)
    assert not layer.can_gate
    with pytest.raises(RuntimeError, match="a gate's halves must be whole blocks"):
        layer.gated(torch.zeros(1, 96), gelu=False)


@pytest.mark.parametrize("inner", [96, 128])
def test_an_mlp_on_kernels_computes_what_transformers_own_does(inner):
    config = LlamaConfig(hidden_size=64, intermediate_size=inner)
    x, mlp = torch.randn(3, 64), LlamaMLP(config).requires_grad_(False)
    model = nn.ModuleDict({"mlp": FusedMLP(mlp)})
    expected = mlp(x)
    pack_linears(model)
    use_kernels(model)
    assert model["mlp"].gate_up_proj.can_gate == (inner == 128)
    torch.testing.assert_close(model["mlp"](x), expected, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_none_stay_none_in_their_row():
    x = torch.randn(3, 64)
    x[1, 7] = float("nan")
    for out in (
        linear("float32", 64)(x),
        KernelNorm(Qwen3RMSNorm(64))(x),
        torch.ops.pasta.gated(x, False),
    ):
        assert out[1].isnan().any()
        assert out[[0, 2]].isfinite().all()


class Layer:
    """A layer's attention on 4 heads that share 2 key heads, in the second of two slots of ``width`` tokens."""

    def __init__(self, queries, dtype=torch.float32, cached=None, dim=8, width=128):
        torch.manual_seed(0)
        self.dim, self.width = dim, width
        self.blocks = [torch.randn(2, 2 * width, dim).to(cached or dtype) for _ in range(2)]
        self.qkv = torch.randn(1, queries, 8 * dim).to(dtype)

    def __call__(self, rows, mask):
        """The queries ``rows`` (a slice), which are also the tokens ``rows`` of the slot."""
        qkv = self.qkv[:, rows]
        one, zero = torch.ones_like(qkv[..., : self.dim]), torch.zeros_like(qkv[..., : self.dim])
        given = qkv, one, zero, None, None, 0.0, *self.blocks, torch.arange(self.width, 2 * self.width)[rows]
        sizes = torch.zeros(1), self.width, mask, None, 2, self.dim**-0.5, 0.0
        return torch.ops.pasta.attend(*given, *sizes)


def test_attention_does_not_read_keys_that_a_row_does_not_see():
    mask = torch.zeros(1, 1, 2, 9)
    mask[..., 5:] = torch.finfo(torch.float32).min
    layer = Layer(2)
    expected = layer(slice(0, 2), mask)
    for block in layer.blocks:
        block[:, 128 + 5 :] = float("nan")
    assert torch.equal(layer(slice(0, 2), mask), expected)


def test_a_row_that_sees_nothing_is_zero():
    assert not Layer(2)(slice(0, 2), torch.full((1, 1, 2, 9), torch.finfo(torch.float32).min)).any()


#: Of activations, and of the cache.
TYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
]


@pytest.mark.parametrize(("dtype", "cached"), TYPES)
@pytest.mark.parametrize(("queries", "exact"), [(5, True), (64, True), (65, False)])
@pytest.mark.parametrize("dim", [8, 64, 128])
def test_attention_of_one_query_is_that_of_many(dim, queries, exact, dtype, cached):
    """As many as decode at once are equal to the bit, those of which many see the same keys too; more, a prompt's, go
    through torch's own operator."""
    mask = torch.zeros(1, 1, queries, 128, dtype=dtype)
    mask[0, 0].masked_fill_(torch.ones(queries, 128).triu(60).bool(), torch.finfo(dtype).min)
    mask[..., 40] = torch.finfo(dtype).min
    layer = Layer(queries, dtype, cached, dim)
    together = layer(slice(0, queries), mask)
    assert together.dtype == dtype
    tolerance = 0.0 if exact else 1e-5 if cached == torch.float32 else 2e-2
    for row in range(queries):
        alone = layer(slice(row, row + 1), mask[:, :, row : row + 1])
        torch.testing.assert_close(alone[0, 0], together[0, row], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "cached"), TYPES)
@pytest.mark.parametrize("dim", [8, 128])
def test_attention_over_several_blocks_of_keys_is_that_of_one_query(dim, dtype, cached):
    """More queries than read a block together, of which each sees some keys that the one before does not."""
    queries, width = 40, 5 * 128 * 1024 // (dim * cached.itemsize) + 70
    mask = torch.zeros(1, 1, queries, width, dtype=dtype)
    mask[0, 0].masked_fill_(torch.ones(queries, width).triu(width - queries).bool(), torch.finfo(dtype).min)
    mask[..., 40] = torch.finfo(dtype).min
    layer = Layer(queries, dtype, cached, dim, width)
    together = layer(slice(0, queries), mask)
    for row in range(queries):
        assert torch.equal(layer(slice(row, row + 1), mask[:, :, row : row + 1])[0, 0], together[0, row])


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_requests_that_are_attended_at_once_by_two_threads_are_each_as_alone():
    torch.manual_seed(0)
    slots, width, dim, seen = 8, 320, 64, 300  # enough work to be shared
    blocks = [torch.randn(2, slots * width, dim) for _ in range(2)]
    qkv = torch.randn(slots, 1, 8 * dim)

    def attend(first, count):
        one, zero = torch.ones(count, 1, dim), torch.zeros(count, 1, dim)
        places = torch.arange(first, first + count) * width + seen - 1
        given = qkv[first : first + count], one, zero, None, None, 0.0, *blocks, places
        mask = torch.zeros(count, 1, 1, seen)
        return torch.ops.pasta.attend(*given, torch.zeros(first), width, mask, None, 2, dim**-0.5, 0.0)

    together = attend(0, slots)
    for slot in range(slots):
        assert torch.equal(attend(slot, 1)[0], together[slot])


@pytest.mark.parametrize("queries", [3, 65])
def test_attention_of_the_tokens_that_are_fed_is_that_of_all_of_them(queries):
    torch.manual_seed(0)
    slots, width, dim, fed = 2, 80, 8, torch.tensor([0, 2, queries + 1])
    qkv, cos, sin = (torch.randn(slots, queries, size) for size in (8 * dim, dim, dim))
    places = torch.arange(slots * width).view(slots, width)[:, :queries].flatten()
    mask = torch.where(torch.rand(slots, 1, queries, 70) < 0.5, 0.0, torch.finfo().min)
    mask[..., :queries] = torch.finfo().min  # what is at the places of padding is seen by no token

    def attend(flat):
        given = [x if flat is None else x.flatten(0, 1)[None, flat] for x in (qkv, cos, sin)]
        blocks = [torch.ones(2, slots * width, dim) for _ in range(2)]
        sizes = torch.zeros(0), width, mask, flat, 2, dim**-0.5, 0.0
        return torch.ops.pasta.attend(*given, None, None, 0.0, *blocks, places, *sizes), blocks

    (out, ours), (expected, theirs) = attend(fed), attend(None)
    assert torch.equal(out[0], expected.flatten(0, 1)[fed])
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own[:, places[fed]], other[:, places[fed]])
        assert not torch.equal(own[:, places[fed]], torch.ones(2, len(fed), dim))


@pytest.mark.parametrize("flat", [[0, 6], [3, 1], [-1, 0]])
def test_attention_refuses_tokens_that_no_slot_has(flat):
    qkv, one = torch.zeros(1, 2, 64), torch.ones(1, 2, 8)
    blocks = [torch.zeros(2, 2 * 80, 8) for _ in range(2)]
    places, mask = torch.arange(6), torch.zeros(2, 1, 3, 70)
    sizes = torch.zeros(0), 80, mask, torch.tensor(flat), 2, 1.0, 0.0
    with pytest.raises(RuntimeError, match="a flat token outside the step"):
        torch.ops.pasta.attend(qkv, one, one, None, None, 0.0, *blocks, places, *sizes)


@pytest.mark.parametrize("queries", [5, 65])
def test_attention_over_a_cache_of_half_the_size_is_near_that_over_a_whole_one(queries):
    mask = torch.zeros(1, 1, queries, 70)
    whole, half = (
        Layer(queries, cached=cached)(slice(0, queries), mask) for cached in (None, torch.bfloat16)
    )
    assert not torch.equal(whole, half)
    torch.testing.assert_close(whole, half, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dim", "fits"), [(512, True), (514, False)])
def test_heads_that_are_too_large_for_the_kernels_are_left_to_torch(dim, fits):
    config = LlamaConfig(hidden_size=8, num_attention_heads=1, num_key_value_heads=1, head_dim=dim)
    model = nn.ModuleDict({"attention": FusedAttention(LlamaAttention(config, 0), config.head_dim)})
    use_kernels(model)
    assert model["attention"].use_kernels == fits


def test_attention_refuses_a_cache_of_a_type_that_it_does_not_know():
    with pytest.raises(RuntimeError, match="types that do not go together"):
        Layer(2, torch.bfloat16, torch.float32)(slice(0, 2), torch.zeros(1, 1, 2, 9, dtype=torch.bfloat16))


@pytest.mark.parametrize("vocab", [5, 8, 2050])
def test_a_token_is_drawn_with_the_noise_that_torch_computes(vocab):
    torch.manual_seed(0)
    scores = 3 * torch.randn(500, vocab).double()
    scores[torch.rand(500, vocab) < 0.5] = float("-inf")
    scores[:, 3] = 0.0
    keys = torch.randint(-(2**63), 2**63 - 1, (500,))
    assert torch.equal(
        torch.ops.pasta.gumbel_argmax(scores, keys), (scores + gumbel(keys, vocab)).argmax(dim=-1)
    )


@pytest.mark.parametrize("flat", [(), (0, 1, 3, 8, 9)])
@pytest.mark.parametrize("segments", [9, 90])
@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_s_tokens_and_masks_are_laid_out_as_torch_does(dtype, window, segments, flat):
    torch.manual_seed(0)
    slots, width, first, batch, queries, keys = 4, 60, 1, 2, 5, 41
    sees = torch.rand(slots, segments, segments) > 0.4
    key_segments = torch.randint(-1, segments, (slots, width))
    key_positions = torch.randint(0, 60, (slots, width))
    tokens, positions = torch.randint(0, 60, (2, batch, queries))
    own = torch.randint(-1, segments, (batch, queries))
    places = torch.stack([torch.randperm(width)[:queries] for _ in range(batch)])
    inputs = torch.cat([torch.stack([tokens, positions, own, places]).flatten(), torch.tensor([7, *flat])])
    noted = key_segments.clone(), key_positions.clone()
    laid = torch.ops.pasta.lay(inputs, *noted, sees, first, batch, queries, keys, len(flat), window, dtype)
    key_segments[first : first + batch].scatter_(1, places, own)
    key_positions[first : first + batch].scatter_(1, places, positions)
    at = slice(first, first + batch)
    k_segments, k_positions = key_segments[at, :keys], key_positions[at, :keys]
    visible = expand(sees[at], own, k_segments, positions, k_positions)
    near = within_window(visible, positions, k_positions, window) if window else visible
    if flat:
        tokens, positions = (fed.flatten()[list(flat)][None] for fed in (tokens, positions))
    places = (places + width * torch.arange(first, first + batch)[:, None]).flatten()
    expected = tokens, positions, places, additive(visible, dtype), additive(near, dtype)
    torch.testing.assert_close(laid, expected, rtol=0, atol=0)
    assert torch.equal(noted[0], key_segments)
    assert torch.equal(noted[1], key_positions)
    assert 0 < (laid[4] == 0).sum() <= (laid[3] == 0).sum() < laid[3].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("promise", [NO_PROMISE, 3, 5000])
@pytest.mark.parametrize("vocab", [5, 2050])
def test_the_likeliest_permitted_token_is_the_one_that_torch_finds(vocab, promise, dtype):
    torch.manual_seed(0)
    logits = torch.randn(200, vocab).mul(4).round().div(2).to(dtype)  # many are equal
    logits[1, 2], logits[2, 2], logits[3] = float("nan"), float("inf"), float("-inf")
    forbidden = torch.rand(7, vocab) < 0.3
    forbidden[:, 2], forbidden[0], forbidden[6, 2:4] = False, True, True
    numbers = torch.randint(0, 7, (7, 200))
    numbers[0, 1:4], numbers[0, 4], numbers[0, 5] = 1, 0, 6
    numbers[3] = torch.randn(200).mul(3).double().view(torch.long)
    expected = likeliest(permit(logits, numbers, forbidden, promise))
    found = likeliest_permitted(logits, numbers, forbidden, promise)
    assert torch.equal(found, expected)
    assert (found[1:5] == -1).all()
    assert (found[6:] >= 0).any()
