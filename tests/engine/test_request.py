"""What is given to an engine, in Python: values of another type are named."""

import re

import pytest

from pasta.engine import EngineConfig, Request, SamplingParams
from pasta.engine.section import EngineSection
from pasta.errors import UserError
from pasta.sizes import EngineSettings, EngineSizes


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"top_k": 2.5}, "top_k: 2.5, expected 0"),
        ({"top_k": True}, "top_k: True, expected 0"),
        ({"seed": "x"}, "seed: 'x', expected an integer"),
        ({"seed": 1.5}, "seed: 1.5, expected an integer"),
        ({"temperature": "1"}, "temperature: '1', expected a number"),
        ({"temperature": True}, "temperature: True, expected a number"),
        ({"top_p": None}, "top_p: None, expected a number"),
        ({"promise_bias": 10**400}, "expected a finite number"),
        ({"promise_bias": float("nan")}, "promise_bias: nan, expected a finite number"),
        ({"stop": "end"}, "stop: 'end', expected a tuple of strings"),
        ({"stop": (3,)}, "stop: (3,), expected a tuple of strings"),
        ({"stop": ["end"]}, "stop: ['end'], expected a tuple of strings"),
        ({"stop": None}, "stop: None, expected a tuple of strings"),
        ({"stop": ("",)}, "stop: an empty string"),
        ({"stop": "end " * 1000}, "end en…, expected a tuple of strings"),
        ({"stop_token_ids": 7}, "stop_token_ids: 7, expected a tuple of token ids"),
        ({"stop_token_ids": [7]}, "stop_token_ids: [7], expected a tuple of token ids"),
        ({"stop_token_ids": (7.0,)}, "stop_token_ids: (7.0,), expected a tuple of token ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids: (-1,), expected a tuple of token ids"),
        ({"stop_token_ids": "7"}, "stop_token_ids: '7', expected a tuple of token ids"),
        (
            {"logit_bias": {7: 1.0}},
            "logit_bias: {7: 1.0}, expected a tuple of pairs of a token id and a number",
        ),
        ({"logit_bias": 7}, "logit_bias: 7, expected a tuple of pairs"),
        ({"logit_bias": (7, 1.0)}, "logit_bias: (7, 1.0), expected a tuple of pairs"),
        ({"logit_bias": ((7,),)}, "logit_bias: ((7,),), expected a tuple of pairs"),
        ({"logit_bias": (("7", 1.0),)}, "logit_bias: (('7', 1.0),), expected a tuple of pairs"),
        ({"logit_bias": ((7, "1"),)}, "logit_bias: ((7, '1'),), expected a tuple of pairs"),
        ({"logit_bias": ((7, 101),)}, "logit_bias: expected values from -100 to 100"),
        ({"ignore_eos": "no"}, "ignore_eos: 'no', expected true or false"),
    ],
)
def test_sampling_parameters_are_of_their_types(fields, expected):
    with pytest.raises(UserError, match=re.escape(expected)):
        SamplingParams(**fields)


@pytest.mark.parametrize("made", [EngineSizes, EngineSettings, EngineConfig, EngineSection])
@pytest.mark.parametrize("name", ["num_slots", "slot_tokens", "prefill_chunk"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.0, "an integer"), (True, "an integer"), ("2", "an integer"), (None, "an integer"),
     (0, "a positive integer"), (-1, "a positive integer")],
)  # fmt: skip
def test_sizes_are_positive_integers(made, name, value, expected):
    with pytest.raises(ValueError, match=re.escape(f"{name} {value!r}: expected {expected}")):
        made(**{name: value})


@pytest.mark.parametrize("made", [EngineSettings, EngineConfig, EngineSection])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"drafts": 8.0}, "drafts 8.0: expected an integer"),
        ({"drafts": True}, "drafts True: expected an integer"),
        ({"drafts": -1}, "drafts -1: expected 0 or more"),
        ({"reuse_prefixes": 1}, "reuse_prefixes 1: expected true or false"),
        ({"jump_forward": None}, "jump_forward None: expected true or false"),
        ({"draft_heads": "no"}, "draft_heads 'no': expected true or false"),
        ({"cuda_graphs": False}, "cuda_graphs: False, expected auto, on or off"),
    ],
)
def test_switches_are_of_their_types(made, fields, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        made(**fields)


def test_a_recording_is_switched_on_or_off_or_left_to_the_engine():
    assert EngineConfig().trace_forward is None
    with pytest.raises(ValueError, match="trace_forward 1: expected true or false"):
        EngineConfig(trace_forward=1)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_a_number_of_log_probabilities_that_is_none_is_refused_before_it_ends_a_step(name, value):
    with pytest.raises(UserError, match=f"{name}: {value}, expected None or an integer of at least 0"):
        Request([5], **{name: value})
