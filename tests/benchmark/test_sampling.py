"""The three ways of sampling draw the same tokens; only their time differs."""

import pytest

from pasta.benchmark.sampling import WAYS, SamplingBench, sampling_report
from pasta.candidates.config import SamplingSection
from pasta.data.prompts import Prompt
from tests.support.models import tiny


@pytest.mark.slow
def test_every_way_of_sampling_draws_the_same_candidates():
    bench = SamplingBench(tiny(), 20, SamplingSection(candidates=3))
    record = bench.measure([Prompt([{"role": "user", "content": text}]) for text in ("Hi", "Why?")])
    assert record.keys() == WAYS.keys()
    assert len({tokens for tokens, _ in record.values()}) == 1
    metrics, tables = sampling_report([record, record], "tiny")
    assert [metric.key for metric in metrics] == ["sampling.rate", "sampling.prompt", "sampling.answer"]
    assert metrics[0].value == record["shard"][0] / record["shard"][1]
    assert "| one answer at a time" in tables["Sampling, tiny"]
