"""Attention with grouped queries: equal to transformers' own, without its copies."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from pasta.engine.attention import grouped_attention

HEADS, GROUPS, TOKENS, DIM = 8, 4, 300, 16


class Layer(torch.nn.Module):
    """What transformers' functions read of an attention layer."""

    num_key_value_groups = GROUPS
    head_dim = DIM


def inputs(lanes, batch=2):
    generator = torch.Generator().manual_seed(lanes)
    query = torch.randn(batch, HEADS, lanes, DIM, generator=generator)
    key, value = torch.randn(2, batch, HEADS // GROUPS, TOKENS, DIM, generator=generator)
    hidden = torch.rand(batch, 1, lanes, TOKENS, generator=generator) < 0.5
    return query, key, value, torch.where(hidden, torch.finfo(torch.float32).min, 0.0)


@pytest.mark.parametrize("lanes", [1, 5])
def test_it_equals_scaled_dot_product_attention(lanes):
    given = inputs(lanes)
    found, _ = grouped_attention(Layer(), *given, scaling=0.3)
    wanted, _ = sdpa_attention_forward(Layer(), *given, scaling=0.3)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("lanes", [1, 5])
def test_it_equals_eager_attention_with_capped_scores(lanes):
    given = inputs(lanes)
    found, _ = grouped_attention(Layer(), *given, scaling=0.3, softcap=2.0)
    wanted, _ = eager_attention_forward(Layer(), *given, scaling=0.3, softcap=2.0)
    torch.testing.assert_close(found, wanted)


def test_no_key_or_value_is_copied():
    class Sizes(TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor._base is None:
                    self.made = max(self.made, tensor.numel())
            return out

    query, key, value, mask = inputs(2)
    with Sizes() as sizes:
        grouped_attention(Layer(), query, key, value, mask)
    assert sizes.made < key.numel()
