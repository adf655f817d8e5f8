"""The gate of the number formats: which ones it measures, and that it finds rows that depend on their neighbours."""

import pytest
import torch
from torch import nn

from jobs.benchmark import parser, settings_of
from pasta.benchmark.formats import _log_probabilities, rows_apart, same_rows
from pasta.engine import Engine, EngineConfig, Request, quantising
from pasta.engine.drafts import Drafter
from pasta.engine.formats import formats_here
from pasta.lang import parse
from tests.support.models import UNRECORDED, tiny

CUDA = torch.device("cuda")
X = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))


def gpu(monkeypatch, capability, torchao=True):
    monkeypatch.setattr(quantising, "find_spec", lambda name: object() if torchao else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


@pytest.mark.parametrize(
    ("capability", "torchao", "names"),
    [
        ((9, 0), True, ["int8", "fp8", "int4"]),
        ((8, 0), True, ["int8", "int4"]),
        ((9, 0), False, []),
    ],
)
def test_on_a_gpu_the_formats_of_torchao_that_it_runs_are_measured(monkeypatch, capability, torchao, names):
    gpu(monkeypatch, capability, torchao)
    assert formats_here(CUDA) == ["float32", "bfloat16", *names]


def test_a_format_of_gpus_is_not_measured_on_a_cpu():
    assert "fp8" not in formats_here(torch.device("cpu"))


def per_tensor(x):
    """A product whose activations share one scale: an outlier takes the others' bits."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def test_a_format_whose_rows_share_a_scale_is_found_out():
    assert not rows_apart(per_tensor, X, padded=False)
    assert not rows_apart(per_tensor, X, padded=True)


def test_rows_with_a_scale_each_are_apart():
    layer = nn.Linear(32, 8)

    def per_row(x):
        return torch.stack([layer(per_tensor(row)) if row.any() else row[:8] for row in x])

    with torch.inference_mode():
        assert rows_apart(per_row, X, padded=False)
        assert rows_apart(per_row, X, padded=True)


def test_a_real_layer_s_rows_are_compared():
    assert same_rows(tiny(packed=True))


def test_three_hundred_prompts_are_asked_unless_told_otherwise():
    assert settings_of(parser().parse_args(["formats"])).prompts == 300


@pytest.mark.slow
def test_logits_are_compared_token_by_token_in_whatever_order_threads_decode(monkeypatch):
    monkeypatch.setattr(Drafter, "_may_pay", lambda self, feeds, numbers: True)
    monkeypatch.setattr(Drafter, "_pays", lambda self, found, feeds, numbers: [len(d.tokens) for d in found])
    loaded = tiny()
    text = "Paris lies on the Seine. Rome lies on the Tiber. "
    chunks = "".join(f'<promise topic="a" tokens="90"/><async>{text * n}</async>' for n in (3, 1, 2))
    ids = [*loaded.codec.encode(parse(chunks)), loaded.codec.eos_id]
    sizes = {"num_slots": 1, "slot_tokens": 512, **UNRECORDED}
    plain, helped = (Engine(loaded, EngineConfig(**sizes, drafts=drafts)) for drafts in (0, 5))
    expected, found = (_log_probabilities(engine, Request([5, 6, 7]), ids) for engine in (plain, helped))
    assert helped.drafter.num_accepted > 20
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
