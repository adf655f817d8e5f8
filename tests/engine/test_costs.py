"""What lanes cost is measured in a few steps, and leaves the engine as it was."""

import pytest

from pasta.engine import Engine, EngineConfig, Request, SamplingParams, measure_costs
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import tiny

LOADED = tiny()


@pytest.mark.parametrize("slot_tokens", [64, 1024])
def test_costs_are_measured_in_a_few_dozen_steps(slot_tokens):
    engine = Engine(LOADED, EngineConfig(num_slots=2, slot_tokens=slot_tokens, prefill_chunk=64))
    costs = measure_costs(engine)
    assert engine.num_steps < 80
    assert costs.knee in (1, 2, 4, 8, 16, 32)
    assert costs.step_s > 0
    assert costs.prefill_s > 0
    assert costs.lane_s >= 0
    assert (engine.num_active, engine.num_waiting, engine.has_work) == (0, 0, False)


@pytest.mark.parametrize("slot_tokens", [5, 6, 8, 9, 15])
def test_a_slot_may_have_room_for_few_steps(slot_tokens):
    """A model without a chat template is served with so small ones, too."""
    costs = measure_costs(Engine(LOADED, EngineConfig(num_slots=2, slot_tokens=slot_tokens)))
    assert costs.step_s > 0
    assert costs.prefill_s > 0
    assert costs.knee == 1


def test_a_slot_without_room_for_a_step_is_refused():
    with pytest.raises(UserError, match=r"^slot_tokens: a context of 4 tokens; expected at least 5$"):
        measure_costs(Engine(LOADED, EngineConfig(slot_tokens=4)))


def test_measuring_changes_no_answer():
    prompt = LOADED.codec.encode_prompt([{"role": "user", "content": "Tell me about France"}])
    limits = Limits(max_tokens=120, max_chunk_tokens=20, max_threads=4)
    request = Request(prompt, limits=limits, sampling=SamplingParams(promise_bias=7.0))
    engine = Engine(LOADED, EngineConfig(num_slots=2, slot_tokens=256))
    before = engine.generate(request).response_ids
    measure_costs(engine)
    assert engine.generate(request).response_ids == before
