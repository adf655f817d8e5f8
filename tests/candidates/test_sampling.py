"""Candidates depend on prompt, models and seed alone, and the engine's report of them is what their tokens say."""

import dataclasses

import pytest

from pasta.candidates.checks import check_vocabularies
from pasta.candidates.config import SamplingSection
from pasta.candidates.sample_report import sample_figures
from pasta.candidates.sampling import Sampler
from pasta.data.prompts import Prompt
from pasta.engine import Engine, EngineConfig, random_model
from pasta.errors import UserError
from pasta.interpreter import Limits
from pasta.lang import parse, to_text
from tests.support.models import CONFIGS, tiny
from tests.support.tokenizers import byte_level, byte_level_without_system, slow_bytes

PROMPTS = [Prompt([{"role": "user", "content": text}]) for text in ("Hi", "Name two rivers.", "What is tea?")]
SAMPLING = SamplingSection(candidates=4, promise_bias=6.0, seed=3)
LIMITS = Limits(max_tokens=60, max_chunk_tokens=12)


def sampler(num_slots: int = 8, sampling: SamplingSection = SAMPLING, slot_tokens: int = 256) -> Sampler:
    config = EngineConfig(num_slots=num_slots, slot_tokens=slot_tokens)
    return Sampler(Engine(tiny(seed=0), config), Engine(tiny(seed=1), config), sampling, LIMITS)


@pytest.fixture(scope="module")
def records():
    return sampler().sample(PROMPTS)


@pytest.mark.slow
def test_a_record_does_not_depend_on_what_is_decoded_beside_it(records):
    alone = [sampler(num_slots=1).sample([prompt])[0] for prompt in reversed(PROMPTS)]
    assert alone[::-1] == records


@pytest.mark.slow
def test_candidates_differ_from_each_other_and_with_the_seed(records):
    drawn = [tuple(answer["response_ids"]) for record in records for answer in record["candidates"]]
    assert len(set(drawn)) == len(drawn) == 12
    other = sampler(sampling=dataclasses.replace(SAMPLING, seed=4)).sample(PROMPTS[:1])
    assert other[0]["candidates"] != records[0]["candidates"]
    assert other[0]["twin"] == records[0]["twin"]


@pytest.mark.slow
def test_a_candidate_s_fields_agree_with_its_tokens(records):
    codec = tiny().codec
    threads = 0
    for answer in (answer for record in records for answer in record["candidates"]):
        document = codec.decode(answer["response_ids"])
        assert answer["annotated"] == to_text(document)
        assert parse(answer["annotated"]) == document
        assert answer["num_tokens"] == len(answer["response_ids"])
        assert (answer["text_tokens"] < answer["num_tokens"]) == (answer["num_threads"] > 1)
        assert answer["num_threads"] == 1 + sum(1 for _ in document.chunks())
        assert answer["critical_path"] <= answer["num_tokens"]
        threads += answer["num_threads"] - 1
    assert threads > 0


@pytest.mark.slow
def test_the_twin_writes_no_tags(records):
    assert all(parse(record["twin"]["text"]).depth() == 0 for record in records)


@pytest.mark.slow
def test_a_prompt_that_leaves_no_room_is_skipped_with_its_reason(records):
    long = Prompt([{"role": "user", "content": "word " * 300}])
    skipped, kept = sampler().sample([long, PROMPTS[0]])
    assert "the context holds 256" in skipped["skipped"]
    assert "candidates" not in skipped
    assert kept == records[0]


def test_a_system_message_is_answered_where_the_template_takes_none():
    model = random_model(CONFIGS["llama"], byte_level_without_system(), device="cpu")
    engine = Engine(model, EngineConfig(num_slots=4, slot_tokens=256))
    prompt = Prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say tea."}])
    (record,) = Sampler(engine, engine, SamplingSection(candidates=2), Limits(max_tokens=4)).sample([prompt])
    assert len(record["candidates"]) == 2


def test_figures_count_tokens_cuts_and_skipped_prompts(records):
    figures = sample_figures([*records, {"id": "x", "messages": [], "skipped": "too long"}])
    answers = [answer for record in records for answer in record["candidates"]]
    assert figures["prompts"] == 4
    assert figures["skipped"] == 1
    assert figures["candidates"] == 12
    assert figures["tokens"] == sum(a["num_tokens"] for a in answers) + sum(
        record["twin"]["num_tokens"] for record in records
    )
    assert figures["cut"] == sum(answer["finish_reason"] != "stop" for answer in answers)


def test_a_twin_of_another_vocabulary_is_refused_by_a_token():
    with pytest.raises(UserError, match=r"twin: there: another vocabulary than here \(token "):
        check_vocabularies(byte_level(), "here", slow_bytes(), "there")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"candidates": 1}, "candidates 1: expected at least 2"),
        ({"temperature": 0.0}, "temperature 0: every candidate would be the same"),
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"top_p": 0.0}, "top_p: 0.0"),
    ],
)
def test_a_wrong_way_of_sampling_is_refused(values, expected):
    with pytest.raises(ValueError, match=expected):
        SamplingSection(**values)
