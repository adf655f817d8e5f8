"""New weights in an engine that has decoded before: it decodes as one that was made with them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.engine import Engine, EngineConfig, Request, random_model
from pasta.engine.updating import update_weights
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import CONFIGS
from tests.support.tokenizers import byte_level

REQUEST = Request(prompt_ids=list(range(10, 40)), limits=Limits(max_tokens=24))


def engine_of(family: str, seed: int, packed: bool | None, dtype: str, traced: bool) -> Engine:
    loaded = random_model(CONFIGS[family], byte_level(), device="cpu", seed=seed, packed=packed, dtype=dtype)
    config = EngineConfig(num_slots=2, slot_tokens=100, prefill_chunk=16, trace_forward=traced)
    return Engine(loaded, config)


def weights_of(family: str, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], dtype=torch.float32)
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    ("family", "packed", "dtype", "traced"),
    [
        ("llama", False, "float32", False),
        ("qwen3", None, "float32", True),
        ("gemma2", None, "float32", False),
        ("olmo2", None, "float32", False),
        ("phi3", None, "float32", True),
        ("qwen3", None, "bfloat16", True),
    ],
)
def test_an_engine_decodes_with_new_weights_as_one_that_was_made_with_them(
    family: str, packed: bool | None, dtype: str, traced: bool
):
    first, second = (engine_of(family, seed, packed, dtype, traced) for seed in (0, 1))
    old = first.generate(REQUEST).response_ids
    wanted = second.generate(REQUEST).response_ids
    assert old != wanted
    update_weights(first, weights_of(family, 1))
    result = first.generate(REQUEST)
    assert result.response_ids == wanted
    assert result.cached_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("family", "packed"), [("llama", False), ("llama", None), ("gemma", False), ("qwen2", False)]
)
def test_a_recorded_forward_takes_new_weights_of_norms_and_biases(
    family: str, packed: bool | None, parallel: bool
):
    """Those of a model that has not been trained yet are equal: all ones, or zeros."""
    weights = weights_of(family, 1)
    for number, (name, value) in enumerate(weights.items()):
        if value.dim() == 1:
            assert value.eq(value[0]).all()
            weights[name] = value + torch.rand(value.shape, generator=torch.Generator().manual_seed(number))
    first, second = (engine_of(family, 0, packed, "float32", True) for _ in range(2))
    request = REQUEST.replace(parallel=parallel)
    first.generate(request)
    for engine in (first, second):
        update_weights(engine, weights)
    assert first.generate(request).response_ids == second.generate(request).response_ids


@pytest.mark.parametrize("parallel", [True, False])
def test_norms_that_are_equal_while_a_recorded_forward_is_optimised_are_not_taken_for_one(parallel: bool):
    equal = weights_of("llama", 1)

    def differing(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: value + torch.rand(value.shape, generator=generator) if value.dim() == 1 else value
            for name, value in equal.items()
        }

    first, second = (engine_of("llama", 0, None, "float32", True) for _ in range(2))
    request = Request(prompt_ids=list(range(10, 20)), parallel=parallel, limits=Limits(max_tokens=24))
    update_weights(first, differing(2))
    first.generate(request.replace(limits=Limits(max_tokens=1)))  # recorded and run once
    update_weights(first, equal)
    first.generate(request)  # TorchScript optimises at the second run
    for engine in (first, second):
        update_weights(engine, differing(3))
    assert first.generate(request).response_ids == second.generate(request).response_ids


def test_what_is_prefilled_of_a_next_turn_is_forgotten_too():
    first, second = (engine_of("llama", seed, False, "float32", False) for seed in (0, 1))
    prompt = first.codec.encode_prompt([{"role": "user", "content": "France"}])
    talk = Request(prompt, parallel=False, limits=Limits(max_tokens=24), conversation=True)
    first.submit(talk)
    while first.num_active or first.num_waiting:
        first.step()
    first.step()  # a chunk of the next turn
    assert first.turns.pending
    assert first.prefixes.counts.ahead > 0
    update_weights(first, weights_of("llama", 1))
    result = first.generate(talk)
    assert result.cached_tokens == 0
    assert result.response_ids == second.generate(talk).response_ids


def test_weights_of_another_model_are_refused():
    engine = engine_of("llama", 0, False, "float32", False)
    weights = weights_of("llama", 1)
    with pytest.raises(UserError, match=r"has no model\.norm\.weight"):
        update_weights(
            engine, {name: value for name, value in weights.items() if name != "model.norm.weight"}
        )
    with pytest.raises(UserError, match="has more, which the model has not"):
        update_weights(engine, weights | {"more": torch.zeros(1)})
    with pytest.raises(UserError, match="do not fit"):
        update_weights(engine, weights | {"model.norm.weight": torch.zeros(3)})
