"""A widened model says what the small one says, at the cost of a large one."""

import re

import pytest
import torch
from transformers import AutoModelForCausalLM

from jobs.benchmark import MODELS
from pasta.benchmark.widening import make_directory, why_not_widened, widen
from pasta.data.atlas import heldout_prompts
from pasta.engine import Engine, EngineConfig, Request, SamplingParams, kernels, read_model_config
from pasta.engine.heads import HeadRunner, read_heads
from pasta.engine.loading import load_model
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.paths import ROOT


def test_the_shapes_in_configs_can_be_had():
    for name in ("wide-400m", "wide-1.7b", "wide-8b"):
        for model in ("twin", "pasta"):
            large = read_model_config(ROOT / "configs/models" / f"{name}.json")
            assert not why_not_widened(read_model_config(MODELS / model), large)


def test_a_second_run_neither_writes_into_a_directory_that_is_being_made_nor_takes_its_place(tmp_path):
    directory = tmp_path / "made" / "wide-8b.v1"
    made = []

    def second(part):
        made.append(part)
        (part / "weights").write_text("2")

    def first(part):
        (part / "weights").write_text("1")
        with pytest.raises(UserError, match=r"v1: another run is making it; wait for it"):
            make_directory(directory, "a model", made.append, second)

    make_directory(directory, "a model", lambda _: None, first)
    make_directory(directory, "a model", made.append, second)
    assert not made
    assert (directory / "weights").read_text() == "1"
    assert [each.name for each in directory.parent.iterdir()] == [directory.name]


def wide(**changes):
    """The shipped model's configuration with more of everything."""
    config = read_model_config(MODELS / "pasta")
    sizes = {
        "vocab_size": 2500,
        "hidden_size": 512,
        "intermediate_size": 832,
        "num_attention_heads": 10,
        "num_key_value_heads": 5,
        "head_dim": 128,
        "num_hidden_layers": 7,
        "layer_types": [*config.layer_types, "full_attention"],
    }
    for name, value in (sizes | changes).items():
        setattr(config, name, value)
    return config


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """The shipped model's directory, and the widened one's."""
    directory = tmp_path_factory.mktemp("wide")
    widen(MODELS / "pasta", wide(hidden_size=1024), directory)
    return MODELS / "pasta", directory


@pytest.fixture(scope="module")
def pair(directories):
    """The two models in the engine's hands, in float32."""
    return [load_model(each, dtype="float32", device="cpu") for each in directories]


@pytest.mark.slow
def test_a_widened_model_has_the_small_one_s_logits(directories):
    ids = torch.arange(5, 45)[None]
    with torch.inference_mode():
        small, large = (
            AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32)(ids).logits[0]
            for each in directories
        )
    torch.testing.assert_close(large[:, : small.shape[1]], small, atol=1e-3, rtol=1e-4)
    assert (large[:, small.shape[1] :].amax(dim=1) < small.amax(dim=1) - 3).all()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_widened_model_gives_the_same_answers(pair, temperature):
    answers = []
    for loaded in pair:
        # Recording takes longer than what these answers would gain by it.
        engine = Engine(loaded, EngineConfig(num_slots=1, reuse_prefixes=False, trace_forward=False))
        for number, task in enumerate(heldout_prompts(3)):
            request = Request(
                engine.codec.encode_prompt(task.messages),
                limits=Limits(max_tokens=60),
                sampling=SamplingParams(temperature=temperature, seed=number),
            )
            answers.append(engine.generate(request).response_ids)
    assert answers[:3] == answers[3:]


@pytest.mark.slow
def test_draft_heads_of_a_widened_model_guess_the_same(directories, monkeypatch):
    monkeypatch.setattr(kernels, "ready", lambda: False)  # which read 8 bits
    torch.manual_seed(0)
    hidden, tokens = 4 * torch.randn(20, 256), torch.randint(5, 2000, (20,))
    # Four times the width: half the last norm.
    padded = torch.cat([hidden / 2, torch.zeros(20, 768)], dim=1)
    guesses = []
    for directory, states in zip(directories, (hidden, padded), strict=True):
        model = AutoModelForCausalLM.from_pretrained(directory)
        vocabulary, width = model.get_input_embeddings().weight.shape
        heads = read_heads(directory, hidden_size=width, vocab_size=vocabulary)
        guesses.append(HeadRunner(heads, model).following(states, tokens))
    (small, sure), (large, same) = guesses
    assert torch.equal(small, large)
    torch.testing.assert_close(same, sure, atol=0.02, rtol=0.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"hidden_size": 128}, "hidden_size 128, expected at least 256"),
        ({"model_type": "llama"}, "model_type 'llama', expected 'qwen3' as in the model that is widened"),
        ({"head_dim": 96}, "head_dim 96, expected a multiple of 64"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-06, expected 1e-05 as in the model that is widened"),
        ({"layer_types": ["full_attention"] * 7}, "layer_types .*, expected .* first"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2, expected at least 4"),
    ],
)
def test_why_a_configuration_cannot_be_had_by_widening_is_one_line(changes, expected):
    found = why_not_widened(read_model_config(MODELS / "pasta"), wide(**changes))
    assert re.fullmatch(expected, found)
