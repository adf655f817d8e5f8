"""Number formats: auto measures, int8 and int4 keep every row to itself."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pasta.engine import Engine, EngineConfig, Request, embedding, formats, kernels, load_model, random_model
from pasta.engine.formats import NumberFormat, fastest_float
from pasta.engine.fusing import FusedAttention
from pasta.engine.head_files import HeadShape
from pasta.engine.heads import DraftHeads, write_heads
from pasta.engine.packing import Int4Linear, Int8Linear, pack_linears, quantised_int4, why_no_integers
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.kernels import built, needs_kernels
from tests.support.models import CONFIGS, tiny
from tests.support.tokenizers import byte_level

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(bool(why_no_integers("int8", CPU)), reason=why_no_integers("int8", CPU))
needs_int4 = pytest.mark.skipif(bool(why_no_integers("int4", CPU)), reason=why_no_integers("int4", CPU))
integers = pytest.mark.parametrize(
    ("name", "made"),
    [
        pytest.param("int8", Int8Linear, marks=needs_int8, id="int8"),
        pytest.param("int4", Int4Linear, marks=needs_int4, id="int4"),
    ],
)
families = pytest.mark.parametrize("family", CONFIGS)


def linear(inputs=96, outputs=64, bias=True):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def ask(text):
    codec = tiny().codec
    return Request(
        codec.encode_prompt([{"role": "user", "content": text}]), limits=Limits(max_tokens=40), parallel=False
    )


@needs_int8
@pytest.mark.parametrize("bias", [False, True])
def test_an_int8_layer_is_near_the_float_one(bias):
    layer, x = linear(bias=bias), torch.randn(5, 96)
    error = (Int8Linear(layer)(x) - layer(x)).abs().max() / layer(x).abs().max()
    assert 0 < error < 0.03


@needs_int4
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (96, 70), (1536, 64), (1056, 130)])
def test_an_int4_layer_computes_with_its_rounded_weights(inputs, outputs, bias):
    layer = linear(inputs, outputs, bias)
    scales, numbers = quantised_int4(layer.weight)
    rounded = (numbers.double() * scales.double()[..., None]).flatten(1)  # [out, in]
    x = torch.randn(2, 5, inputs)
    row_scales = x.abs().amax(-1, keepdim=True) / 127
    expected = (x / row_scales).round().double() @ rounded.T * row_scales
    if bias:
        expected += layer.bias
    torch.testing.assert_close(Int4Linear(layer)(x), expected.float(), rtol=1e-5, atol=1e-5)


def test_int4_weights_are_near_the_float_ones_and_those_of_zero_stay_zero():
    weight = linear(96, 64).weight.clone()
    weight[3] = 0
    scales, numbers = quantised_int4(weight)
    assert (int(numbers.min()), int(numbers.max())) == (-8, 7)
    rounded = (numbers * scales.float()[..., None]).flatten(1)
    assert not rounded[3].any()
    # Half a step, or what a narrower range cuts off the farthest weight.
    steps = scales.float().abs().repeat_interleave(32, dim=1)
    assert ((rounded - weight).abs() <= 1.5 * steps).all()
    assert (rounded - weight).norm() / weight.norm() < 0.08


@needs_int4
def test_layers_whose_inputs_are_no_multiple_of_32_have_8_bits_in_int4():
    model = nn.Sequential(linear(96, 40), linear(40, 64))
    pack_linears(model, Int4Linear)
    assert [type(layer) for layer in model] == [Int4Linear, Int8Linear]


@integers
def test_a_row_of_integers_is_the_same_alone_and_beside_an_outlier(name, made):
    """One scale for a whole batch, as torch's own dynamic quantisation has it, would move it by a quarter."""
    layer, x = made(linear()), torch.randn(9, 96)
    x[4] *= 1000
    together = layer(x)
    for row in range(9):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


@integers
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_of_integers_that_is_no_number_stays_none(name, made, value):
    x = torch.randn(3, 96)
    x[1, 7] = value
    out = made(linear())(x)
    assert not out[1].isfinite().any()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.slow
@integers
@families
def test_every_family_decodes_in_integers_the_same_traced_and_untraced(family, name, made):
    loaded = random_model(CONFIGS[family], byte_level(), dtype=name, device="cpu")
    assert loaded.format.name == name
    assert any(isinstance(module, made) for module in loaded.model.modules())
    assert isinstance(loaded.model.lm_head, Int8Linear)
    assert not any(isinstance(module, nn.Linear) for module in loaded.model.modules())
    found = [
        Engine(loaded, EngineConfig(num_slots=2, slot_tokens=256, trace_forward=traced)).generate(
            ask("Hello")
        )
        for traced in (False, True)
    ]
    assert found[0].response_ids == found[1].response_ids


@pytest.mark.slow
@integers
@families
def test_a_large_embedding_of_16_bits_stays_as_it_is_and_changes_no_answer(
    family, name, made, monkeypatch, tmp_path
):
    random_model(CONFIGS[family], byte_level(), dtype="bfloat16", packed=False).model.save_pretrained(
        tmp_path
    )
    byte_level().save_pretrained(tmp_path)
    found = []
    for worth in (1 << 60, 0):
        monkeypatch.setattr(embedding, "_WORTH", worth)
        loaded = load_model(tmp_path, dtype=name, device="cpu")
        rows = loaded.model.get_input_embeddings()(torch.arange(64)[None])
        answer = Engine(
            loaded, EngineConfig(num_slots=2, slot_tokens=256, trace_forward=worth == 0)
        ).generate(ask("Hello"))
        found.append((loaded.model.get_input_embeddings().weight.dtype, rows, answer))
    (wide, wide_rows, expected), (kept, kept_rows, answer) = found
    assert (wide, kept) == (torch.float32, torch.bfloat16)
    assert torch.equal(wide_rows, kept_rows)
    assert answer.response_ids == expected.response_ids


@pytest.mark.parametrize("name", ["bfloat16", pytest.param("int8", marks=needs_int8)])
def test_one_layer_s_stacked_projections_are_in_memory_at_a_time(name, monkeypatch):
    """All of them are two thirds of a model, in the format in which it is stored."""
    stacked = []

    def pack(part, *args):
        layers = (
            module for module in model.base_model.layers if isinstance(module.self_attn, FusedAttention)
        )
        stacked.append(sum(isinstance(layer.self_attn.qkv_proj, nn.Linear) for layer in layers))
        pack_linears(part, *args)

    monkeypatch.setattr(formats, "pack_linears", pack)
    model = copy.deepcopy(tiny().model)
    formats.apply_format(model, NumberFormat(name), CPU, packed=True)
    assert stacked == [1] * len(model.base_model.layers) + [0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
@pytest.mark.parametrize("name", ["bfloat16", pytest.param("int8", marks=needs_int8)])
def test_nothing_of_the_files_of_a_packed_model_stays_in_memory(name, monkeypatch, tmp_path):
    """A row of the embedding would keep all of them there, and the service would seem to be twice as large."""
    monkeypatch.setattr(embedding, "_WORTH", 0)
    model = tiny().model
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    shape = HeadShape(model.config.hidden_size, model.config.vocab_size, depth=1, width=4)
    write_heads(tmp_path, DraftHeads(shape), {})
    loaded = load_model(tmp_path, dtype=name, device="cpu", packed=True)
    assert loaded.heads is not None
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert str(tmp_path / "model.safetensors") not in mapped


@families
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=needs_kernels)])
def test_every_family_decodes_in_bfloat16(family, with_kernels, fused, monkeypatch):
    """Fused without kernels it is as torch compiles it for a GPU."""
    if not with_kernels:
        monkeypatch.setattr(kernels, "ready", lambda: False)
    packed = None if fused else False
    loaded = random_model(CONFIGS[family], byte_level(), dtype="bfloat16", device="cpu", packed=packed)
    engine = Engine(loaded, EngineConfig(num_slots=2, slot_tokens=256, trace_forward=False))
    assert engine.generate(ask("Hello")).num_tokens


@needs_kernels
@pytest.mark.parametrize(
    ("name", "cached"), [("int8", torch.bfloat16), ("int4", torch.bfloat16), ("float32", torch.float32)]
)
def test_the_cache_of_integer_layers_has_16_bits(name, cached):
    built()
    loaded = random_model(CONFIGS["llama"], byte_level(), dtype=name, device="cpu")
    cache = Engine(loaded, EngineConfig(num_slots=1, slot_tokens=64)).runner.cache
    wanted = cached if kernels.runs(torch.bfloat16) else torch.float32
    assert {block.dtype for block in (*cache.keys, *cache.values)} == {wanted}
    assert loaded.model.dtype == torch.float32


@pytest.mark.slow
@integers
def test_an_answer_in_integers_is_the_same_in_every_company(name, made):
    loaded = random_model(CONFIGS["llama"], byte_level(), dtype=name, device="cpu")
    texts = ["Hello", "Tell me about France", "1, 2, 3"]
    alone = [
        Engine(loaded, EngineConfig(num_slots=1, slot_tokens=256)).generate(ask(text)).response_ids
        for text in texts
    ]
    engine = Engine(loaded, EngineConfig(num_slots=3, slot_tokens=256))
    results = {result.request_id: result.response_ids for result in engine.decode(map(ask, texts), at_once=3)}
    assert [results[key] for key in sorted(results)] == alone


def test_formats_are_timed_for_longer_than_another_process_keeps_the_core(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(formats, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def runner(busy: float, free: float):
        def run(rows: int) -> None:
            now[0] += busy if now[0] < 0.05 else free

        return run

    seconds = formats._timed({"float32": runner(4e-4, 4e-4), "bfloat16": runner(1e-3, 1e-4)}, CPU)
    assert seconds == pytest.approx({"float32": 8e-4, "bfloat16": 2e-4})


def test_auto_takes_the_format_that_is_fastest_on_one_layer(monkeypatch):
    monkeypatch.setattr(formats, "can_pack", lambda device, dtype: dtype == torch.float32)
    assert fastest_float(tiny().model, CPU) == NumberFormat("float32", "the only float format here")
    monkeypatch.setattr(formats, "_runs", lambda name, device: True)
    monkeypatch.setattr(formats, "_timed", lambda runners, device: {"float32": 0.004, "bfloat16": 0.001})
    chosen = fastest_float(
        random_model(CONFIGS["llama"], byte_level(), device="cpu", packed=False).model, CPU
    )
    assert chosen.name == "bfloat16"
    assert chosen.why == (
        "float32 is not clearly faster for one layer with 1 and 8 rows (float32 4 ms, bfloat16 1 ms)"
    )


@pytest.mark.parametrize(("bfloat16", "chosen"), [(0.9, "bfloat16"), (1.1, "bfloat16"), (1.9, "float32")])
def test_noise_does_not_choose(monkeypatch, bfloat16, chosen):
    """Two replicas of one model, on one kind of machine, must compute in one format."""
    monkeypatch.setattr(formats, "_runs", lambda name, device: True)
    monkeypatch.setattr(formats, "_timed", lambda runners, device: {"float32": 1.0, "bfloat16": bfloat16})
    found = fastest_float(random_model(CONFIGS["llama"], byte_level(), device="cpu", packed=False).model, CPU)
    assert found.name == chosen


def test_auto_takes_float32_on_a_gpu_without_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert fastest_float(tiny().model, torch.device("cuda")).name == "float32"


def test_auto_really_times_every_format_that_runs_here():
    loaded = random_model(CONFIGS["llama"], byte_level(), dtype="auto", device="cpu")
    assert loaded.format.name in ("float32", "bfloat16")
    assert loaded.model.dtype == loaded.format.dtype
    assert loaded.format.why != "as configured"


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize(
    ("could_have_kernels", "said"),
    [(False, "this CPU has no instructions"), (True, "the kernels for this CPU are not built")],
)
def test_a_machine_without_products_of_bytes_refuses_integers_in_one_line(
    monkeypatch, name, could_have_kernels, said
):
    monkeypatch.setattr(
        kernels, "cpu_has", lambda *features: could_have_kernels and "avx512_vnni" not in features
    )
    monkeypatch.setattr(kernels, "ready", lambda: False)
    with pytest.raises(UserError, match=f"dtype: '{name}', but {said}") as caught:
        random_model(CONFIGS["llama"], byte_level(), dtype=name, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_saved_model_loads_in_every_format(tmp_path):
    tiny().model.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    names = ["auto", "float32", "bfloat16"] + [
        name for name in ("int8", "int4") if not why_no_integers(name, CPU)
    ]
    for name in names:
        loaded = load_model(tmp_path, dtype=name, device="cpu")
        assert name in ("auto", loaded.format.name)
        assert Engine(loaded, EngineConfig(num_slots=1, slot_tokens=128)).generate(ask("Hi")).num_tokens > 0
