"""Under every rule of positions the engine decodes what was trained, and placement does not change the text."""

import copy
import itertools
from dataclasses import replace

import pytest

from pasta.engine import Engine, EngineConfig, Request, SamplingParams, load_model
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import Codec
from pasta.lang.positions import SCHEMES, Positions
from pasta.lang.tokenizer import store_scheme, stored_scheme
from tests.engine.test_parity import TOLERANCE, engine_logits, training_logits
from tests.support.documents import random_document
from tests.support.elsewhere import decode_chunks_elsewhere
from tests.support.models import UNRECORDED, tiny
from tests.support.tokenizers import byte_level

schemes = pytest.mark.parametrize("scheme", SCHEMES)
SIZES = {"num_slots": 2, "slot_tokens": 1024, **UNRECORDED}


def ruled(scheme, family="qwen3", factor=1.0):
    return replace(tiny(family), codec=Codec(byte_level(), positions=Positions(scheme, factor)))


@schemes
@pytest.mark.parametrize(
    "family", ["llama", "qwen3"]
)  # without sliding windows, which are measured in positions
def test_logits_equal_the_training_forward(scheme, family, monkeypatch):
    loaded = ruled(scheme, family)
    codec = loaded.codec
    prompt = codec.encode_prompt([{"role": "user", "content": "Tell me about France and Japan."}])
    ids = [*codec.encode(random_document(0, depth=3)), codec.eos_id]
    expected = training_logits(loaded, prompt, ids)
    actual, _ = engine_logits(
        loaded, prompt, ids, EngineConfig(**SIZES, jump_forward=False, drafts=0), monkeypatch
    )
    assert actual.keys() == expected.keys()
    assert max((actual[key] - expected[key]).abs().max().item() for key in actual) <= TOLERANCE


def test_the_rules_differ_in_what_the_model_computes():
    prompt = [5, 6, 7]
    ids = [*ruled("shared").codec.encode(random_document(0, depth=3)), byte_level().eos_token_id]
    found = {
        scheme: training_logits(ruled(scheme), prompt, ids) for scheme in SCHEMES if scheme != "predicted"
    }
    last = max(step for path, step in found["shared"] if path == ())
    logits = [each[(), last] for each in found.values()]
    for one, other in itertools.pairwise(logits):
        assert (one - other).abs().max() > 100 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "factor"), [*((scheme, 1.0) for scheme in SCHEMES), ("predicted-in-tens", 3.0)]
)
def test_chunks_decoded_elsewhere_have_the_same_text(scheme, factor):
    loaded = ruled(scheme, "llama", factor)
    prompt = loaded.codec.encode_prompt([{"role": "user", "content": "Tell me about France"}])
    request = Request(
        prompt_ids=prompt,
        limits=Limits(max_tokens=200, max_chunk_tokens=14, max_threads=60, max_depth=2),
        sampling=SamplingParams(promise_bias=7.0),
    )
    lanes = Engine(loaded, EngineConfig(**SIZES)).generate(request)
    assert len(lanes.trace.threads) >= 3
    plain = Engine(loaded, EngineConfig(**SIZES, jump_forward=False, drafts=0)).generate(request)
    assert plain.response_ids == lanes.response_ids
    one_by_one = decode_chunks_elsewhere(lambda: Engine(loaded, EngineConfig(**SIZES)), request)
    assert one_by_one.response_ids == lanes.response_ids
    assert one_by_one.critical_path == lanes.critical_path


def saved(directory, scheme):
    tokenizer = copy.deepcopy(byte_level())
    store_scheme(tokenizer, scheme)
    tiny().model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@schemes
def test_the_engine_reads_the_rule_from_the_model_directory(scheme, tmp_path):
    loaded = load_model(saved(tmp_path, scheme), device="cpu", packed=False)
    assert loaded.codec.grammar.positions == Positions(scheme)
    assert stored_scheme(loaded.tokenizer) == scheme
    has_key = "pasta_positions" in (tmp_path / "tokenizer_config.json").read_text()
    assert has_key == (scheme != "predicted-in-tens")  # the default leaves no trace


def test_a_rule_that_is_none_is_named_in_one_line(tmp_path):
    directory = saved(tmp_path, "shared")
    path = directory / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"shared"', '"halfway"'))
    with pytest.raises(UserError) as caught:
        load_model(directory, device="cpu", packed=False)
    assert str(caught.value) == (
        f"model '{directory}': tokenizer: pasta_positions 'halfway', expected one of predicted-in-tens, predicted, "
        "fixed, shared"
    )
