"""What helps are worth is compared over answers that say the same."""

from types import SimpleNamespace

import pytest

from pasta.benchmark.helps import WAYS, HelpBench, help_report
from pasta.benchmark.measurement import MeasuredPart
from pasta.stages.records import RecordFile


def record(*, limited, twin_s, pasta_s):
    """A prompt with independent parts; every help halves the seconds."""
    plain = {"twin": twin_s, "pasta": pasta_s}
    return {"independent": True, "limited": limited, "changed": 0, "answers": 1} | {
        f"{model}, {way}, {temperature}": [seconds / (1 if way == "no help" else 2), 10, 10, 10]
        for model, seconds in plain.items()
        for way in WAYS
        for temperature in (0.0, 0.8)
    }


@pytest.fixture
def values():
    """The figures of two prompts, one of which has limits that may cut its answers."""
    records = [
        record(limited=True, twin_s=1.0, pasta_s=1.0),
        record(limited=False, twin_s=4.0, pasta_s=2.0),
    ]
    metrics, _ = help_report(records, "tiny")
    return {metric.key: (metric.value, metric.count) for metric in metrics}


def test_models_are_compared_over_whole_answers(values):
    """One that is cut has said another part of its answer than the other model's."""
    assert values["help.plain"] == values["help.plain_independent"] == pytest.approx((4.0, 1))
    assert values["help.same_independent"] == pytest.approx((2.0, 1))


def test_a_model_is_compared_with_itself_over_cut_answers_too(values):
    assert values["help.twin"] == values["help.pasta"] == pytest.approx((2.0, 2))


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_that_the_length_limit_cuts_is_limited(reason):
    class Bench(HelpBench):
        def __init__(self):
            result = SimpleNamespace(
                response_ids=[1], finish_reason=reason, critical_path=1, steps=1, num_tokens=1
            )
            engine = SimpleNamespace(
                codec=SimpleNamespace(encode_prompt=lambda messages: [1]), generate=lambda request: result
            )
            self._max_tokens, self._engines = 8, {("twin", "no help"): engine}

    task = SimpleNamespace(messages=[], independent=True)
    assert Bench()._measure(1, task)["limited"] == (reason == "length")


def test_no_prompt_is_timed_while_an_engine_records_its_forward(tmp_path):
    """An engine's first answer takes longer than its others, also in a run that goes on."""

    class Bench(HelpBench):
        def __init__(self):
            self.measured = []

        def _measure(self, number, task):
            self.measured.append(task)
            return {"measured": len(self.measured)}

    for tasks, measured in (("a", ["a", "a"]), ("ab", ["a", "b"]), ("ab", [])):
        file, bench = RecordFile(tmp_path / "help.jsonl", {}), Bench()
        bench.run(MeasuredPart(file, range(len(tasks)), "prompts", "helps", say=print), tasks)
        assert bench.measured == measured
        assert {record["measured"] for record in file.records.values()} == {2}
