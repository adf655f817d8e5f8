"""An answer says of an engine's result what its own tokens say."""

import json

import pytest

from pasta.engine import Engine, EngineConfig, Request, Result, SamplingParams
from pasta.evaluation.methods.answers import Answer
from pasta.interpreter import Limits
from pasta.lang import parse, strip
from tests.support.models import tiny

CODEC = tiny().codec


@pytest.fixture(scope="module")
def result() -> Result:
    """A greedy answer with chunks: random weights seldom open a promise by themselves."""
    engine = Engine(tiny(), EngineConfig(num_slots=1, slot_tokens=512))
    prompt = CODEC.encode_prompt([{"role": "user", "content": "Name two rivers."}])
    limits = Limits(max_tokens=150, max_chunk_tokens=20)
    found = engine.generate(
        Request(prompt_ids=prompt, limits=limits, sampling=SamplingParams(promise_bias=8.0))
    )
    assert len(found.trace.threads) > 1
    return found


@pytest.fixture(scope="module")
def answer(result: Result) -> Answer:
    return Answer.from_result(result, CODEC)


def test_a_budget_counts_every_token_once(result, answer):
    ids, control = result.response_ids, CODEC.control
    chunks = len(result.trace.threads) - 1
    assert sum(answer.budget.values()) == answer.tokens == len(ids)
    # <promise, its end, and the given <async>.
    assert answer.budget["promise"] == 3 * chunks
    assert answer.budget["async_end"] == ids.count(control.async_close) == chunks
    assert answer.budget.get("sync", 0) == ids.count(control.sync)
    topics = sum(len(thread.topic_ids) for thread in result.trace.threads)
    assert answer.budget["topic"] == topics + chunks * len(CODEC.grammar.open_ids)


def test_a_sequential_answer_is_text_alone():
    engine = Engine(tiny(), EngineConfig(num_slots=1, slot_tokens=256))
    prompt = CODEC.encode_prompt([{"role": "user", "content": "Hi"}])
    request = Request(prompt_ids=prompt, limits=Limits(max_tokens=40), parallel=False)
    answer = Answer.from_result(engine.generate(request), CODEC)
    assert answer.budget == {"text": answer.tokens}
    assert answer.critical_path == answer.steps == answer.tokens
    assert len(answer.threads) == 1


def test_threads_lie_within_the_critical_path_and_chunks_have_parent_and_topic(result, answer):
    document = parse(answer.annotated)
    main, *chunks = answer.threads
    assert (main.start, main.parent, main.topic) == (0, None, None)
    assert sorted(chunk.topic for chunk in chunks) == sorted(chunk.topic for chunk in document.chunks())
    for chunk in chunks:
        parent = answer.threads[chunk.parent]
        assert parent.start < chunk.start <= parent.end
        assert chunk.start < chunk.end
    assert max(thread.end for thread in answer.threads) == answer.critical_path == result.critical_path
    assert all(since < to for thread in answer.threads for since, to in thread.waits)


def test_the_annotated_text_strips_to_what_a_user_sees(answer):
    assert strip(answer.annotated) == answer.text


def test_a_record_survives_json_and_keeps_the_names_of_the_fields(answer):
    record = answer.to_record()
    assert json.loads(json.dumps(record)) == record
    assert [*record] == [*Answer.__dataclass_fields__]
    assert record["threads"][1]["parent"] == 0
    assert len(record["seconds"]) == 1
