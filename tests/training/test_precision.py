"""What a run computes in: `auto` takes bfloat16 where the machine has instructions for it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.engine import packing
from pasta.training.config import OptimisationSection
from pasta.training.masks import install_thread_masks
from pasta.training.run import uses_bfloat16
from tests.training.pair_runs import save_tiny_model


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


def test_masks_are_finite_in_the_format_that_attention_runs_in(tmp_path: Path):
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    install_thread_masks(model)
    masks: list[torch.Tensor] = []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    ids, padded = torch.tensor([[1, 2, 0]]), torch.tensor([[0, 0, -1]])
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, position_ids=ids, segment_ids=padded, sees=torch.ones(1, 1, 1, dtype=torch.bool))
    assert masks[0].to(torch.bfloat16).isfinite().all()
