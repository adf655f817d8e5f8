"""Packed linear layers compute what linear layers do, and torch's private operators behind them are still there."""

import re

import pytest
import torch
from torch import nn

from pasta.engine import packing
from pasta.engine.packing import PackedLinear, can_pack, pack_linears
from tests.support.paths import ROOT

PINNED = re.search(r"torch (\d+\.\d+\.\d+)", packing.__doc__ or "")[1]
CPU = torch.device("cpu")


def test_the_pinned_version_is_the_one_that_the_operators_were_taken_from():
    locked = re.search(r"^torch==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
    assert locked == PINNED, (
        "check the operators that pasta/engine/packing.py uses, then name the new version"
    )


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("_linear_pointwise", "Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm"),
        ("_reorder_linear_weight", "Tensor self, int? batch_size=None"),
        ("_is_mkldnn_bf16_supported", ""),
    ],
)
def test_torch_still_has_the_operators(operator, arguments):
    gone = (
        f"torch {torch.__version__} has no mkldnn.{operator}({arguments}): pasta/engine/packing.py was written "
        f"against torch {PINNED}. Adapt that module, or pin that version again."
    )
    schemas = [str(schema) for schema in torch._C._jit_get_all_schemas()]
    assert any(schema.startswith(f"mkldnn::{operator}({arguments}) -> ") for schema in schemas), gone


def test_torch_still_has_the_operators_of_8_bit_layers():
    gone = (
        f"torch {torch.__version__} has no such onednn operators: pasta/engine/packing.py was written against torch "
        f"{PINNED}. Adapt that module, or pin that version again."
    )
    schemas = {str(schema) for schema in torch._C._jit_get_all_schemas()}
    assert any(s.startswith("onednn::qlinear_prepack(Tensor weight, int[]? x_shape) -> ") for s in schemas), (
        gone
    )
    start = "onednn::qlinear_pointwise(Tensor qx, float x_scale, int x_zero_point, Tensor qw, Tensor w_scale, Tensor"
    assert any(schema.startswith(start) for schema in schemas), gone


@pytest.mark.parametrize("name", ["avx2", "fma3", "avx512_f", "avx512_vnni", "avx512_bf16"])
def test_torch_still_says_what_the_cpu_can_do(name):
    gone = (
        f"torch {torch.__version__} does not say whether this CPU has {name}: pasta/engine/kernels.py was written "
        f"against torch {PINNED}. Adapt that module, or pin that version again."
    )
    if torch.cpu.get_capabilities()["architecture"] == "x86_64":
        assert name in torch.cpu.get_capabilities(), gone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_computes_what_the_layer_did(dtype, bias):
    if not can_pack(CPU, dtype):
        pytest.skip("this CPU has no packed layers of this type")
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias).to(dtype)
    x = torch.randn(3, 5, 64, dtype=dtype)
    with torch.inference_mode():
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), rtol=tolerance, atol=tolerance)


def test_every_linear_layer_of_a_model_is_packed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 4)))
    pack_linears(model)
    assert not any(isinstance(layer, nn.Linear) for layer in model.modules())
    assert sum(isinstance(layer, PackedLinear) for layer in model.modules()) == 2
