"""Outputs are judged well-formed from their token ids alone."""

import dataclasses

import pytest

from pasta.benchmark.quality import fault_of, grades
from pasta.data.atlas import heldout_prompts
from pasta.engine import Engine, EngineConfig, Request, SamplingParams
from pasta.interpreter import Limits
from tests.support.models import tiny

LOADED = tiny()
CODEC = LOADED.codec


@pytest.fixture(scope="module")
def result():
    engine = Engine(LOADED, EngineConfig(num_slots=1, slot_tokens=512))
    prompt = CODEC.encode_prompt([{"role": "user", "content": "Hi"}])
    eager = SamplingParams(promise_bias=7.0)
    limits = Limits(max_tokens=120, max_chunk_tokens=20)
    return engine.generate(Request(prompt_ids=prompt, sampling=eager, limits=limits))


def test_an_output_of_random_weights_is_well_formed(result):
    assert len(result.trace.threads) > 1
    assert fault_of(CODEC, result) == ""


def test_an_output_that_lost_a_tag_is_not(result):
    ids = list(result.response_ids)
    ids.remove(CODEC.control.async_close)
    assert "expected </async>" in fault_of(CODEC, dataclasses.replace(result, response_ids=tuple(ids)))


def test_an_output_without_its_end_is_not(result):
    cut = dataclasses.replace(result, response_ids=result.response_ids[:-1])
    assert fault_of(CODEC, cut) == "does not end with end-of-text"


def test_an_output_that_differs_from_the_reported_document_is_not(result):
    assert fault_of(CODEC, dataclasses.replace(result, document=None))


def test_the_truth_gets_full_marks():
    for task in heldout_prompts(12):
        graded = grades(task, task.answer, task.answer, task.document)
        assert graded["twin_right"] == graded["twin_total"] == graded["pasta_right"]
        assert graded["annotated_parts"] == graded["independent_parts"]
        assert graded["dependent_left_alone"]
        assert graded["sync_right"]
        assert graded["wrong"] == []
