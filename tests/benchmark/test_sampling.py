"""The three ways of sampling draw the same tokens; only their time differs."""

import pytest

from pasta.benchmark import sampling
from pasta.benchmark.measurement import MeasuredPart
from pasta.benchmark.sampling import GROUPS, WAYS, SamplingBench, measure_groups, sampling_report
from pasta.candidates.config import SamplingSection
from pasta.data.prompts import Prompt
from pasta.stages.records import RecordFile
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


def test_no_group_is_timed_while_an_engine_records_its_forward(tmp_path, monkeypatch):
    measured = []

    class Bench:
        def __init__(self, loaded, max_tokens):
            self.engines = {}

        def measure(self, prompts):
            measured.append(len(prompts))
            return {"measured": len(measured)}

    monkeypatch.setattr(sampling, "SamplingBench", Bench)
    file = RecordFile(tmp_path / "sampling.jsonl", {})
    measure_groups(MeasuredPart(file, range(GROUPS), "groups", "sampling", say=print), None, 8)
    assert measured == [1, *[sampling.GROUP_PROMPTS] * GROUPS]
    assert [record["measured"] for record in file.records.values()] == [*range(2, GROUPS + 2)]
