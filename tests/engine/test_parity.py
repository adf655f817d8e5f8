"""The engine's step-by-step logits equal one training forward under the mask, on every architecture."""

import copy

import numpy as np
import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request, kernels, load_model, random_model
from pasta.engine.device import DeviceState
from pasta.engine.masks import expand, sliding_window, to_model_masks
from pasta.interpreter import Interpreter, Limits, linearise
from pasta.lang import Document, Text
from tests.support.documents import random_document
from tests.support.kernels import built, needs_kernels
from tests.support.models import CONFIGS, tiny
from tests.support.tokenizers import byte_level

#: Without a window, and with one that alternates: make test-unit checks these two, make test all families.
QUICK = ("llama", "gemma3")


def marks(family):
    return () if family in QUICK else pytest.mark.slow


families = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=marks(family)) for family in CONFIGS]
)
TOLERANCE = 1e-4


def sees_matrix(sees):
    """Bitmasks of visible segments as a boolean matrix."""
    return torch.tensor(
        [[bits >> column & 1 for column in range(len(sees))] for bits in sees], dtype=torch.bool
    )


def training_logits(loaded, prompt, ids):
    """Logits of every row from one forward, by (path, number of the thread's tokens before it)."""
    rows = linearise(loaded.codec.grammar, prompt, ids)
    index = torch.arange(len(rows.token_ids))[None]
    segments, positions = torch.tensor([rows.segments]), torch.tensor([rows.positions])
    visible = expand(sees_matrix(rows.sees)[None], segments, segments, index, index)
    masks = to_model_masks(loaded.model.config, visible, positions, positions, torch.float32)
    with torch.no_grad():
        logits = loaded.model(
            input_ids=torch.tensor([rows.token_ids]),
            attention_mask=masks,
            position_ids=positions,
            use_cache=False,
        ).logits[0]
    it = Interpreter(loaded.codec.grammar, Limits(max_depth=99), prompt, strict=False)
    it.drive(0, ids)
    out, previous, count = {}, {0: len(prompt) - 1}, {}
    for row, feed in enumerate(it.take_feeds(), start=len(prompt)):
        if feed.thread in previous:
            emitted = count.get(feed.thread, 0)
            out[it.threads[feed.thread].path, emitted] = logits[previous[feed.thread]]
            count[feed.thread] = emitted + 1
        previous[feed.thread] = row
    return out


def engine_logits(loaded, prompt, ids, config, monkeypatch):
    """The same from a replay through the engine."""
    engine, out = Engine(loaded, config), {}
    lanes, forward = engine._chooser.lanes, engine._multi_step.forward

    def record(slots, feeds, rows, scores, *more):
        for row, found in zip(rows, scores.logits, strict=True):
            t = row.slot.interpreter.threads[row.thread]
            out[t.path, len(t.tokens) + len(row.drafts)] = found.clone()
        return lanes(slots, feeds, rows, scores, *more)

    def record_steps(numbers, slots, *more):
        made, steps = forward(numbers, slots, *more)
        for number, own in made.items():
            for lane in own:
                t = slots[number].interpreter.threads[lane.thread]
                for at in range(steps):
                    out[t.path, len(t.tokens) + at] = lane.logits[lane.first + at].clone()
        return made, steps

    monkeypatch.setattr(engine._chooser, "lanes", record)
    monkeypatch.setattr(engine._multi_step, "forward", record_steps)
    result = engine.generate(Request(prompt_ids=prompt, forced=ids))
    assert list(result.response_ids) == ids
    return out, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "seed", "traced"),
    [
        pytest.param(family, seed, traced, marks=marks(family))
        for family in CONFIGS
        for seed, traced in [(0, True), *((seed, False) for seed in range(4 if family in QUICK else 1))]
    ],
)
def test_logits_equal_the_training_forward(family, seed, traced, monkeypatch):
    loaded = tiny(family)
    codec = loaded.codec
    prompt = codec.encode_prompt([{"role": "user", "content": "Tell me about France and Japan."}])
    ids = [*codec.encode(random_document(seed, depth=3)), codec.eos_id]
    expected = training_logits(loaded, prompt, ids)
    sizes = {"num_slots": 2, "slot_tokens": 1024, "prefill_chunk": 7, "trace_forward": traced, "drafts": 0}
    actual, result = engine_logits(
        loaded, prompt, ids, EngineConfig(**sizes, jump_forward=False), monkeypatch
    )
    assert actual.keys() == expected.keys()
    assert max((actual[key] - expected[key]).abs().max().item() for key in actual) <= TOLERANCE
    assert result.steps == result.critical_path
    actual, jumped = engine_logits(loaded, prompt, ids, EngineConfig(**sizes), monkeypatch)
    has_tags = codec.control.promise in ids  # only their tokens are forced
    assert actual.keys() <= expected.keys()
    assert (actual.keys() < expected.keys()) == has_tags
    assert max((actual[key] - expected[key]).abs().max().item() for key in actual) <= TOLERANCE
    assert jumped.critical_path == result.critical_path
    assert (jumped.steps < jumped.critical_path) == has_tags


@families
@pytest.mark.parametrize("traced", [False, True])
def test_the_forward_is_recorded_when_asked(family, traced):
    engine = Engine(tiny(family), EngineConfig(slot_tokens=64, trace_forward=traced))
    engine.generate(Request(prompt_ids=[5, 6, 7], limits=Limits(max_tokens=2)))
    assert isinstance(engine.runner.state.forwards[False], torch.jit.ScriptModule) == traced


def test_on_a_cpu_the_forward_of_a_small_model_is_recorded_unasked():
    engine = Engine(tiny(), EngineConfig(slot_tokens=64))
    engine.generate(Request(prompt_ids=[5, 6, 7], limits=Limits(max_tokens=2)))
    assert isinstance(engine.runner.state.forwards[False], torch.jit.ScriptModule)


@families
def test_a_plain_answer_gives_the_models_own_causal_logits(family, monkeypatch):
    loaded = tiny(family)
    codec = loaded.codec
    prompt = codec.encode_prompt([{"role": "user", "content": "hello"}])
    ids = [*codec.encode(Document((Text("The capital of France is Paris. " * 3),))), codec.eos_id]
    actual, _ = engine_logits(loaded, prompt, ids, EngineConfig(slot_tokens=512, drafts=0), monkeypatch)
    with torch.no_grad():
        own = loaded.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
    for step in range(len(ids)):
        assert (actual[(), step] - own[len(prompt) - 1 + step]).abs().max() <= TOLERANCE


@pytest.fixture(params=[False, pytest.param(True, marks=needs_kernels)], ids=["torch", "kernels"])
def with_kernels(request, monkeypatch):
    """Both ways to run packed layers: torch's operators, and the project's own."""
    if request.param:
        built()
    else:
        monkeypatch.setattr(kernels, "ready", lambda: False)
    return request.param


@pytest.mark.slow
@families
@pytest.mark.parametrize("traced", [False, True])
def test_packed_and_fused_layers_change_nothing(family, traced, with_kernels, monkeypatch):
    prompt, ids = [5, 6, 7], [*tiny(family).codec.encode(random_document(1)), tiny(family).codec.eos_id]
    config = EngineConfig(slot_tokens=512, trace_forward=traced, prefill_chunk=24, drafts=0)
    plain, _ = engine_logits(tiny(family), prompt, ids, config, monkeypatch)
    loaded = random_model(CONFIGS[family], byte_level(), device="cpu", packed=True)
    packed, _ = engine_logits(loaded, prompt, ids, config, monkeypatch)
    assert max((packed[key] - plain[key]).abs().max().item() for key in plain) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_fused_layers_keep_their_biases(family, with_kernels, monkeypatch, tmp_path):
    config = copy.deepcopy(CONFIGS[family])
    config.attention_bias = config.mlp_bias = True
    made = random_model(config, byte_level(), device="cpu", packed=False).model
    biases = [parameter for name, parameter in made.named_parameters() if name.endswith("bias")]
    assert biases
    for bias in biases:  # they are zero at first
        bias.normal_()
    made.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    sizes = EngineConfig(slot_tokens=512, trace_forward=False, drafts=0)
    loaded = [load_model(tmp_path, device="cpu", packed=packed) for packed in (False, True)]
    prompt, ids = [5, 6, 7], [*loaded[0].codec.encode(random_document(1)), loaded[0].codec.eos_id]
    plain, packed = (engine_logits(each, prompt, ids, sizes, monkeypatch)[0] for each in loaded)
    assert max((packed[key] - plain[key]).abs().max().item() for key in plain) <= TOLERANCE


def test_a_traced_forward_with_packed_linears_runs_without_python(with_kernels):
    """Calls into Python would take its lock, once for every layer, from those who pass tokens on."""
    loaded = random_model(CONFIGS["llama"], byte_level(), device="cpu", packed=True)
    engine = Engine(loaded, EngineConfig(slot_tokens=128, trace_forward=True))
    engine.generate(Request(prompt_ids=[5, 6, 7], limits=Limits(max_tokens=4)))
    kinds = {node.kind() for node in engine.runner.state.forwards[False].inlined_graph.nodes()}
    assert ("pasta::linear" if with_kernels else "mkldnn::_linear_pointwise") in kinds
    assert {kind.split("::")[0] for kind in kinds} == {"aten", "prim", "pasta" if with_kernels else "mkldnn"}
    assert "prim::PythonOp" not in kinds


@families
def test_a_window_counts_where_transformers_own_model_has_one(family):
    """Llama's and Gemma's ignore one in their configuration."""
    config = CONFIGS[family].__class__(**CONFIGS[family].to_dict() | {"sliding_window": 4})
    model = random_model(config, byte_level(), device="cpu", packed=False).model
    ids = torch.arange(5, 35)[None]
    positions = torch.arange(ids.shape[1])[None]
    masks = to_model_masks(
        config, positions[:, :, None] >= positions[:, None, :], positions, positions, torch.float32
    )
    ours, own = (model(input_ids=ids, attention_mask=mask, use_cache=False).logits for mask in (masks, None))
    torch.testing.assert_close(ours, own, rtol=0, atol=TOLERANCE)


def test_the_tests_reach_past_the_sliding_windows():
    ids = tiny("mistral").codec.encode(random_document(0, depth=3))
    with_windows = [family for family, config in CONFIGS.items() if sliding_window(config)]
    assert with_windows == ["mistral", "qwen2", "qwen3", "gemma2", "gemma3", "ministral", "olmo3", "phi3"]
    assert all(len(ids) > 2 * sliding_window(CONFIGS[family]) for family in with_windows)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_wrong_mask_would_show(family, monkeypatch):
    """The check can fail: threads that see each other change the logits by far more than the tolerance."""
    loaded = tiny(family)
    codec = loaded.codec
    document = random_document(2, depth=3)
    prompt, ids = [5, 6, 7], [*codec.encode(document), codec.eos_id]
    expected = training_logits(loaded, prompt, ids)
    learn = DeviceState.learn
    monkeypatch.setattr(
        DeviceState, "learn", lambda state, slot, known, rows: learn(state, slot, known, np.ones_like(rows))
    )
    actual, _ = engine_logits(loaded, prompt, ids, EngineConfig(trace_forward=False, drafts=0), monkeypatch)
    assert max((actual[key] - expected[key]).abs().max().item() for key in actual) > 100 * TOLERANCE
