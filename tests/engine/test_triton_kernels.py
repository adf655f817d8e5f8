"""The kernels for GPUs compute what torch does; Triton's interpreter runs them here."""

import pytest
import torch
from torch.nn.functional import gelu, silu
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from pasta.engine import Engine, EngineConfig, Request, kernels, random_model
from pasta.engine.fusing import KernelNorm
from pasta.interpreter import Limits
from tests.support.documents import random_document
from tests.support.models import CONFIGS, UNRECORDED, tiny
from tests.support.tokenizers import byte_level

SIZES = {**UNRECORDED, "num_slots": 2, "slot_tokens": 192, "drafts": 0, "multi_step": False}


@pytest.fixture
def triton_kernels(monkeypatch):
    """Triton's kernels in place of those for this CPU."""
    made = kernels._for_gpus()
    monkeypatch.setattr(kernels, "run_on", lambda device, dtype: True)
    monkeypatch.setattr(kernels, "operators", lambda device: made)
    return made


def logits(loaded):
    """Of each forward of two requests side by side: one plain, one with threads; and the answers."""
    engine, seen = Engine(loaded, EngineConfig(**SIZES)), []
    forward = engine.runner.forward

    def watched(*arguments):
        scores = forward(*arguments)
        seen.append(scores.logits.clone())
        return scores

    engine.runner.forward = watched
    engine.runner._can_be_flat = False  # they never are on a GPU
    document = random_document(5, depth=1)
    requests = [
        Request([*range(5, 23)], parallel=False, limits=Limits(max_tokens=4), request_id="plain"),
        Request([5, 6], forced=[*engine.codec.encode(document), engine.codec.eos_id], request_id="threads"),
    ]
    return seen, {result.request_id: result.text for result in engine.decode(requests)}


#: What they compute differs: plain; queries normed, and a window; scores capped, GELU and norms that scale from one.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_a_model_on_them_has_the_logits_that_it_has_without(family, triton_kernels, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(kernels, "run_on", lambda device, dtype: False)
        expected, answers = logits(tiny(family, packed=False))
    loaded = random_model(CONFIGS[family], byte_level(), device="cpu", seed=0, packed=None)
    found, same = logits(loaded)
    assert same == answers
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, Gemma3RMSNorm])
def test_a_norm_computes_what_torch_does(kind, triton_kernels):
    torch.manual_seed(0)
    norm = kind(70)
    torch.nn.init.normal_(norm.weight)
    x = 3 * torch.randn(2, 5, 70)
    torch.testing.assert_close(KernelNorm(norm)(x), norm(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_gelu", [False, True])
def test_a_gate_computes_what_torch_does(is_gelu, triton_kernels):
    torch.manual_seed(0)
    x = 4 * torch.randn(3, 2, 2 * 1100)
    gate, up = x.chunk(2, dim=-1)
    expected = (gelu(gate, approximate="tanh") if is_gelu else silu(gate)) * up
    torch.testing.assert_close(triton_kernels.gated(x, is_gelu), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "groups", "dim"), [(1, 1, 64), (3, 4, 24), (20, 4, 8)])
def test_attention_reads_keys_in_parts_and_puts_them_together(lanes, groups, dim, triton_kernels):
    """Of the second and the third of four slots; the last of the 150 keys fill no whole block."""
    torch.manual_seed(0)
    width, visible, k_heads = 200, 150, 2
    qkv = torch.randn(2, lanes, k_heads * (groups + 2) * dim)
    cos, sin = torch.ones(2, lanes, dim), torch.zeros(2, lanes, dim)
    keys, values = torch.randn(2, k_heads, 4 * width, dim)
    places = (torch.tensor([[1], [2]]) * width + 100 + torch.arange(lanes)).flatten()
    mask = torch.where(torch.rand(2, 1, lanes, visible) < 0.5, 0.0, torch.finfo(torch.float32).min)
    expected_keys, expected_values = keys.clone(), values.clone()
    heads = qkv.unflatten(-1, (-1, dim)).transpose(1, 2)
    query, key, value = heads.split([k_heads * groups, k_heads, k_heads], dim=1)
    for cache, new in ((expected_keys, key), (expected_values, value)):
        cache[:, places] = new.transpose(0, 1).flatten(1, 2)
    read = [
        cache.view(k_heads, 4, width, dim).transpose(0, 1)[1:3, :, :visible].repeat_interleave(groups, 1)
        for cache in (expected_keys, expected_values)
    ]
    expected = torch.nn.functional.scaled_dot_product_attention(query, *read, mask, scale=0.3)
    no_norms, before = (None, None, 0.0), torch.zeros(1)
    out = triton_kernels.attend(
        qkv, cos, sin, *no_norms, keys, values, places, before, width, mask, None, groups, 0.3, 0.0
    )
    torch.testing.assert_close(out, expected.transpose(1, 2).flatten(2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(keys, expected_keys, rtol=0, atol=0)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0)
