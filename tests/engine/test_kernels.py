"""The kernels for this CPU compute what torch does, a row alone as beside others, and nothing needs them."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from pasta.engine.fusing import KernelNorm
from pasta.engine.masks import expand, to_model_masks
from pasta.engine.packing import Int8Linear, PackedLinear
from pasta.engine.sampling import gumbel
from tests.support.kernels import built, needs_kernels
from tests.support.models import CONFIGS

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def library():
    built()


def linear(name, inputs=96, outputs=70, bias=True):
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    return Int8Linear(layer) if name == "int8" else PackedLinear(layer.to(getattr(torch, name)))


def formats():
    names = ["float32", "int8"]
    return names + (["bfloat16"] if torch.cpu._is_avx512_bf16_supported() else [])


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


@pytest.mark.parametrize("name", formats())
@pytest.mark.parametrize("inputs", [1300, 1536])  # the second is a whole number of AMX's tiles
def test_a_row_is_the_same_alone_and_beside_an_outlier(name, inputs):
    layer = linear(name, inputs, 70)
    x = torch.randn(23, inputs, dtype=torch.bfloat16 if name == "bfloat16" else torch.float32)
    x[4] *= 1000
    together = layer(x)
    for row in range(len(x)):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("inputs", [95, 97])
def test_a_width_that_a_kernel_does_not_read_is_left_to_torch(inputs):
    layer = nn.Linear(inputs, 8).requires_grad_(False)
    x = torch.randn(3, inputs, dtype=torch.bfloat16)
    packed = PackedLinear(layer.to(torch.bfloat16))
    assert not packed._outputs
    torch.testing.assert_close(packed(x), layer(x), rtol=2e-2, atol=2e-2)


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


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("width", [48, 50])
def test_a_gate_computes_what_torch_does(gelu, width):
    x = torch.randn(3, 2 * width) * 20
    gate, up = x.chunk(2, dim=-1)
    act = nn.functional.gelu(gate, approximate="tanh") if gelu else nn.functional.silu(gate)
    torch.testing.assert_close(torch.ops.pasta.gated(x, gelu), act * up, rtol=1e-5, atol=1e-5)


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
    """A layer's attention on 4 heads of 8 that share 2 key heads, in the second of two slots of 128 tokens."""

    def __init__(self, queries, dtype=torch.float32):
        torch.manual_seed(0)
        self.blocks = [torch.randn(2, 2 * 128, 8).to(dtype) for _ in range(2)]
        self.qkv = torch.randn(1, queries, 8 * 8).to(dtype)

    def __call__(self, rows, mask):
        """The queries ``rows`` (a slice), which are also the tokens ``rows`` of the slot."""
        qkv = self.qkv[:, rows]
        one, zero = torch.ones_like(qkv[..., :8]), torch.zeros_like(qkv[..., :8])
        places = torch.arange(128, 256)[rows]
        before = torch.zeros(1)
        return torch.ops.pasta.attend(
            qkv, one, zero, None, None, 0.0, *self.blocks, places, before, 128, mask, 2, 8**-0.5, 0.0
        )


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "exact"), [(5, True), (64, True), (65, False)])
def test_attention_of_one_query_is_that_of_many(queries, exact, dtype):
    """As many as decode at once are equal to the bit; more, a prompt's, go through torch's own operator."""
    mask = torch.zeros(1, 1, queries, 70, dtype=dtype)
    mask[0, 0].masked_fill_(torch.ones(queries, 70).triu(3).bool(), torch.finfo(dtype).min)
    layer = Layer(queries, dtype)
    together = layer(slice(0, queries), mask)
    tolerance = 0.0 if exact else 1e-5 if dtype == torch.float32 else 2e-2
    for row in range(queries):
        alone = layer(slice(row, row + 1), mask[:, :, row : row + 1])
        torch.testing.assert_close(alone[0, 0], together[0, row], rtol=tolerance, atol=tolerance)


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


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_s_masks_are_those_of_torch(family, dtype):
    torch.manual_seed(0)
    sees = torch.rand(2, 9, 9) > 0.4
    q_seg, k_seg = torch.randint(-1, 6, (2, 5)), torch.randint(-1, 6, (3, 70))[:2, 3:43]
    q_pos, k_pos = torch.randint(0, 60, (2, 5)), torch.randint(0, 60, (2, 90))[:, :40]
    q_index, k_index = torch.randint(0, 40, (2, 5)), torch.arange(50)[None, :40]

    def masks():
        visible = expand(sees[:, :6, :6], q_seg, k_seg, q_index, k_index)
        return to_model_masks(CONFIGS[family], visible, q_pos, k_pos, dtype)

    plain = masks()
    with torch.inference_mode():
        fast = masks()
    torch.testing.assert_close(fast, plain, rtol=0, atol=0)
    every = plain.values() if isinstance(plain, dict) else [plain]
    assert all(0 < (mask == 0).sum() < mask.numel() for mask in every)
