"""What a run computes in: `auto` takes bfloat16 where the machine has instructions for it."""

import pytest
import torch

from pasta.engine import packing
from pasta.training.config import OptimisationSection
from pasta.training.precision import uses_bfloat16


def recipe(**keys):
    return OptimisationSection(learning_rate=1e-3, rows=1, **keys)


@pytest.mark.parametrize("supported", [False, True])
def test_auto_follows_the_cpu(monkeypatch, supported):
    monkeypatch.setattr(packing, "onednn_packs", lambda dtype: supported)
    assert uses_bfloat16(recipe(), use_gpu=False) == supported


@pytest.mark.parametrize("supported", [False, True])
def test_auto_follows_the_gpu(monkeypatch, supported):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert uses_bfloat16(recipe(), use_gpu=True) == supported


@pytest.mark.parametrize("supported", [False, True])
def test_a_named_precision_is_taken_at_its_word(monkeypatch, supported):
    monkeypatch.setattr(packing, "onednn_packs", lambda dtype: supported)
    assert uses_bfloat16(recipe(precision="bf16"), use_gpu=False)
    assert not uses_bfloat16(recipe(precision="fp32"), use_gpu=False)
