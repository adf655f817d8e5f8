"""Compiled forwards: tokens as without, nothing compiled once the engine has started, one line where it cannot be."""

import logging
from dataclasses import replace

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from transformers import LlamaConfig

from pasta.engine import Engine, EngineConfig, compiling, graphs, kernels, random_model
from pasta.engine.fusing import FusedMLP, KernelNorm
from pasta.engine.heads import HeadRunner
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.engine.test_graphs import SIZES, StandIn, decode, requests
from tests.engine.test_heads import made
from tests.support.models import SMALL, tiny
from tests.support.tokenizers import byte_level

#: Compiling takes a while for each layer.
LOADED = random_model(
    LlamaConfig(**{**SMALL, "num_hidden_layers": 1}), byte_level(), device="cpu", packed=False
)
ONE = {**SIZES, "num_slots": 1}


@pytest.fixture
def compilations(monkeypatch):
    """Compile one shape, with what torch's own compiler begins with; returns the graphs that were compiled."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return aot_eager(graph, inputs)

    # torch writes a trace for whoever listens, and pytest does.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    monkeypatch.setattr(compiling, "_BACKEND", backend)
    monkeypatch.setattr(kernels, "ready", lambda: False)
    monkeypatch.setattr(graphs, "_COMMON_LANES", 1)
    monkeypatch.setattr(graphs, "_COMMON_KEYS", 256)
    torch._dynamo.reset()
    return compiled


@pytest.mark.slow
def test_compiled_steps_choose_the_same_tokens_and_wait_for_no_compiler(compilations, monkeypatch):
    """With draft heads, which read the states of compiled forwards too."""
    stand_in = StandIn()
    loaded = replace(LOADED, heads=HeadRunner(made(), LOADED.model))
    engine = Engine(loaded, EngineConfig(**ONE, compile="on"), stand_in)
    stand_in.runner = engine.runner
    at_start, compiled = len(compilations), engine.runner.state.forwards[False]._compiled
    assert at_start > 0
    used = []
    monkeypatch.setattr(
        engine.runner.state.forwards[False], "_compiled", lambda *inputs: used.append(1) or compiled(*inputs)
    )
    asked = [request.replace(parallel=False, limits=Limits(max_tokens=20)) for request in requests()[:1]]
    assert decode(engine, asked) == decode(Engine(LOADED, EngineConfig(**ONE)), asked)
    assert 0 < len(used) < stand_in.num_replayed + engine.num_steps, "other shapes run as they always do"
    assert engine.drafter.num_drafted > 0
    assert len(compilations) == at_start


@pytest.mark.slow
def test_a_model_that_does_not_compile_is_one_line(monkeypatch, compilations):
    def broken(graph, inputs):
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(compiling, "_BACKEND", broken)
    with pytest.raises(UserError, match="compile: 'on', but the model does not compile here") as error:
        Engine(LOADED, EngineConfig(**ONE, compile="on"), StandIn())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_what_is_compiled_has_no_kernels(compilations, monkeypatch, family):
    """torch's compiler fuses small operators itself, and reads no kernel of others."""
    loaded = tiny(family)
    norm, mlp = loaded.model.base_model.norm, loaded.model.base_model.layers[0].mlp
    kernel_norm, fused = KernelNorm(norm), FusedMLP(mlp)
    fused.use_kernels = True
    monkeypatch.setattr(kernels, "operators", lambda device: pytest.fail("a kernel"))
    x = torch.randn(2, 3, SMALL["hidden_size"])
    for ours, theirs in ((kernel_norm, norm), (fused, mlp)):
        compiled = torch.compile(ours, backend="eager")
        torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "says"), [({}, "the model runs on cpu"), ({"cuda_graphs": "off"}, "cuda_graphs is off")]
)
def test_where_steps_are_not_captured_it_is_refused(more, says):
    with pytest.raises(UserError, match=f"compile: 'on', but steps are not captured: {says}; expected off"):
        Engine(LOADED, EngineConfig(**ONE, compile="on", **more))


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="compile: 'yes', expected off or on"):
        EngineConfig(compile="yes")
