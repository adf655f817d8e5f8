"""Number formats on GPUs: what a CPU can tell of them."""

import pytest
import torch

from pasta.engine import quantising
from pasta.engine.formats import NumberFormat, choose_format
from pasta.errors import UserError
from tests.support.models import tiny

CUDA = torch.device("cuda")


def test_a_format_of_gpus_is_refused_on_a_cpu():
    with pytest.raises(UserError, match="dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto"):
        choose_format("fp8", tiny().model, torch.device("cpu"))


def test_without_torchao_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(quantising, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="torchao is not installed"):
        choose_format("int8", tiny().model, CUDA)


def test_a_gpu_without_the_products_is_refused(monkeypatch):
    monkeypatch.setattr(quantising, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UserError, match=r"compute capability 8\.0, and fp8 takes 8\.9"):
        choose_format("fp8", tiny().model, CUDA)
    assert choose_format("int4", tiny().model, CUDA) == NumberFormat("int4", on_gpu=True)


def test_activations_are_bfloat16_on_a_gpu_and_float32_on_a_cpu():
    assert NumberFormat("int8", on_gpu=True).dtype == NumberFormat("fp8", on_gpu=True).dtype == torch.bfloat16
    assert NumberFormat("int8").dtype == torch.float32


@pytest.mark.parametrize("name", quantising.GPU_FORMATS)
def test_torchao_has_what_is_asked_of_it(name):
    pytest.importorskip("torchao")
    config = quantising.torchao_config(name)
    assert type(config).__name__.endswith("Config")
