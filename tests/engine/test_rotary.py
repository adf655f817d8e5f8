"""Rotary position embeddings: scaling that depends on a length is at one set of frequencies, in a context that keeps
to them."""

import pytest
import torch
from transformers import LlamaConfig, Phi3Config

from pasta.engine import Engine, EngineConfig, Request, random_model
from pasta.engine.memory import check_positions
from pasta.engine.rotary import rotary_order
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.models import SMALL, UNRECORDED
from tests.support.tokenizers import byte_level

FIRST = 64
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [4.0, 9.0]}
SCALED = {
    "dynamic": LlamaConfig(
        **{**SMALL, "max_position_embeddings": FIRST},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
    # As in Phi 4 mini: half of each head, two sets of factors, and scores that grow by the scaling.
    "longrope": Phi3Config(
        **{**SMALL, "max_position_embeddings": 4 * FIRST},
        pad_token_id=0,
        original_max_position_embeddings=FIRST,
        partial_rotary_factor=0.5,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **FACTORS},
    ),
}
scaled = pytest.mark.parametrize("kind", SCALED)


@scaled
def test_the_context_ends_where_the_frequencies_would_change(kind, tmp_path):
    loaded = random_model(SCALED[kind], byte_level(), device="cpu")
    assert loaded.max_positions == FIRST
    loaded.model.config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"engine.slot_tokens: 65, but .* has {FIRST} positions"):
        check_positions(FIRST + 1, [str(tmp_path)])


@scaled
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_up_to_there_answers_are_transformers_own(kind, packed, traced):
    loaded = random_model(SCALED[kind], byte_level(), device="cpu", packed=packed)
    engine = Engine(loaded, EngineConfig(slot_tokens=FIRST, **UNRECORDED | {"trace_forward": traced}))
    prompt = list(b"Which rivers flow?")
    found = engine.generate(Request(prompt, limits=Limits(max_tokens=FIRST), parallel=False)).response_ids
    assert len(prompt) + len(found) == FIRST - 1
    own = random_model(SCALED[kind], byte_level(), device="cpu", packed=False).model
    with torch.no_grad():
        logits = own(torch.tensor([[*prompt, *found]])).logits[0, len(prompt) - 1 : -1]
    logits[:, list(loaded.codec.special_ids)] = -torch.inf
    logits[:, loaded.codec.grammar.vocab_size :] = -torch.inf
    assert [*logits.argmax(dim=-1).tolist()[:-1], loaded.codec.eos_id] == list(found)


def test_in_their_order_the_turned_numbers_of_a_head_are_half_a_head_apart():
    assert rotary_order(4, 8) == [0, 1, 4, 5, 2, 3, 6, 7]
    assert rotary_order(6, 8) == [0, 1, 2, 6, 3, 4, 5, 7]
