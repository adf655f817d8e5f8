"""The weights that actors get while a model trains."""

import copy

import pytest
import torch
from peft import get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from pasta.rl.weights import whole_weights
from pasta.training.config import LoraSection
from pasta.training.lora import peft_config
from tests.support.models import CONFIGS


def model_of(tied: bool) -> nn.Module:
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS["llama"])
    config.tie_word_embeddings = tied
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_named_as_in_the_checkpoint_and_shared_ones_come_once(tied: bool):
    model = model_of(tied)
    found = whole_weights(model, torch.float32, keep=True)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert ("lm_head.weight" in found) is not tied
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name], parameter)
        assert found[name].data_ptr() != parameter.data_ptr()


def test_adapters_are_merged_into_what_is_sent_and_not_into_the_model():
    model = get_peft_model(model_of(tied=True), peft_config(LoraSection(rank=4)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = whole_weights(model, torch.float32, keep=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    merged = dict(model.merge_and_unload().named_parameters())
    assert found.keys() == merged.keys()
    for name, value in merged.items():
        torch.testing.assert_close(found[name], value)


def test_ranks_that_keep_nothing_get_nothing():
    assert whole_weights(model_of(tied=True), torch.bfloat16, keep=False) == {}
