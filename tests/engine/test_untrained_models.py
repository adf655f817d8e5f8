"""A model that PASTA has not trained has no control tokens: it decodes one token after another, as it always did."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.engine import Engine, EngineConfig, Request, load_model, measure_costs
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec, CodecError
from tests.support.models import UNRECORDED
from tests.support.service import save_plain_model
from tests.support.tokenizers import byte_level_without_tags


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_plain_model(tmp_path_factory.mktemp("plain"))


def engine(directory):
    return Engine(load_model(directory, sequential=True), EngineConfig(2, 200, **UNRECORDED))


def generated(model, prompt, codec):
    """What transformers' generate writes after a prompt, greedily. Special tokens but the ends are no text: neither
    side may write them."""
    return model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=30,
        do_sample=False,
        suppress_tokens=sorted(codec.special_ids - codec.eos_ids),
        pad_token_id=0,
    )[0, len(prompt) :].tolist()


def test_it_decodes_what_transformers_generates(directory):
    decoder = engine(directory)
    prompt = decoder.codec.encode_prompt([{"role": "user", "content": "Tell me <sync/> about /> France"}])
    result = decoder.generate(Request(prompt, parallel=False, limits=Limits(max_tokens=30)))
    model = AutoModelForCausalLM.from_pretrained(directory)
    expected = generated(model, prompt, decoder.codec)
    decoded = list(result.response_ids)
    assert decoded[: len(expected) - 1] == expected[: len(decoded) - 1][: len(expected) - 1]
    assert len(decoded) >= 2


def test_it_is_not_asked_for_parallel_answers(directory):
    with pytest.raises(UserError, match="no control tokens"):
        engine(directory).submit(Request([5, 6]))


def test_its_costs_are_measured_for_one_lane(directory):
    costs = measure_costs(engine(directory))
    assert costs.knee == 1
    assert costs.step_s > 0


def test_its_tokenizer_is_refused_where_parallel_answers_are_wanted(directory):
    with pytest.raises(UserError, match="control tokens"):
        load_model(directory)
    with pytest.raises(CodecError, match="control tokens"):
        Codec(byte_level_without_tags())


def test_text_that_looks_like_a_tag_is_plain_text():
    codec = Codec(byte_level_without_tags(), sequential=True)
    assert not codec.parallel
    text = 'a <promise topic="b" tokens="10"/> c <sync/>'
    assert codec.decode_text(codec.encode_text(text)) == text
    assert codec.special_ids.isdisjoint(codec.encode_text(text))


@pytest.fixture
def ending(directory, tmp_path):
    """A model that ends its answers with a token that generation_config.json alone names, as Qwen's and OLMo 3's do."""
    tokenizer, model = byte_level_without_tags(), AutoModelForCausalLM.from_pretrained(directory)
    end = tokenizer.convert_tokens_to_ids("<|user|>")
    with torch.no_grad():
        model.get_output_embeddings().weight[end] *= 3
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path, end


def test_its_answers_end_with_what_its_generation_config_names(ending):
    folder, end = ending
    decoder = engine(folder)
    assert decoder.codec.eos_ids == {decoder.codec.eos_id, end}
    prompts = [decoder.codec.encode_text(text) for text in ("The capital", "First, heat", "Then add salt")]
    model, ended = AutoModelForCausalLM.from_pretrained(folder), []
    for prompt in prompts:
        result = decoder.generate(Request(prompt, parallel=False, limits=Limits(max_tokens=30)))
        expected = generated(model, prompt, decoder.codec)
        if expected[-1] == end:
            ended.append((list(result.response_ids), expected))
    assert ended
    assert all(ours == theirs for ours, theirs in ended)


def test_an_ordinary_token_that_a_configuration_names_as_the_end_is_text(ending):
    folder, _ = ending
    letter = byte_level_without_tags().convert_tokens_to_ids("a")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": letter}))
    decoder = engine(folder)
    assert decoder.codec.eos_ids == {decoder.codec.eos_id}


def test_without_a_generation_config_its_configuration_names_the_ends(ending):
    folder, end = ending
    (folder / "generation_config.json").unlink()
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [end]}))
    assert end in engine(folder).codec.eos_ids
