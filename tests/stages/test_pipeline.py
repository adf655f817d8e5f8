"""Which stages follow from a pipeline's file, and what each of them reads."""

from pathlib import Path

import pytest

from pasta.config import ConfigError, parse_config
from pasta.stages.pipeline import Instance, PipelineConfig, instances

STAGES = {
    "annotate": {"job": "annotate", "config": "a.yaml"},
    "sft": {"job": "sft", "config": "s.yaml", "set": {"data.source": "@annotate"}},
}
ROUND = {
    "sample": {"job": "sample", "config": "m.yaml", "set": {"model": "@model", "twin": "@sft"}},
    "score": {"job": "score", "config": "q.yaml", "set": {"samples": "@sample", "lambda": 4}},
    "prefer": {"job": "preference", "config": "p.yaml", "set": {"model": "@model", "data": "@score"}},
}


def plan(**keys) -> list[Instance]:
    values = {"name": "p", "output_dir": "out", "stages": STAGES, **keys}
    return list(instances(parse_config(values, PipelineConfig, "p.yaml"), Path("p.yaml")))


def reads(steps: list[Instance]) -> dict[str, dict[str, str]]:
    return {step.name: step.reads for step in steps}


def test_stages_come_once_and_the_round_as_often_as_asked():
    names = [step.name for step in plan(round=ROUND, rounds=2)]
    assert names == [
        "annotate",
        "sft",
        *(f"round-1-{name}" for name in ROUND),
        *(f"round-2-{name}" for name in ROUND),
    ]


def test_a_round_reads_its_own_stages_and_the_first_stages():
    of = reads(plan(round=ROUND, rounds=2))
    assert of["round-2-score"] == {"samples": "round-2-sample"}
    assert of["round-2-sample"]["twin"] == "sft"


def test_model_is_the_one_trained_last():
    of = reads(plan(round=ROUND, rounds=2))
    assert of["round-1-sample"]["model"] == "sft"
    assert of["round-1-prefer"]["model"] == "sft"
    assert of["round-2-sample"]["model"] == "round-1-prefer"


def test_outputs_take_the_place_of_references():
    score = plan(round=ROUND, rounds=1)[3]
    assert score.overrides({"round-1-sample": Path("out/x")}) == ['samples="out/x"', "lambda=4"]


@pytest.mark.parametrize(
    "value", [1e-05, [1, 2], True, None, "no", "a, b", "1e-5", "x: y # z", "λ😀\x7f\x85\u2028"]
)
def test_a_set_value_reaches_the_job_as_it_is(value, tmp_path):
    from dataclasses import dataclass
    from typing import Any

    from pasta.config import load_config

    @dataclass(frozen=True)
    class Target:
        key: Any

    (tmp_path / "c.yaml").write_text("key: x\n")
    stages = {"sft": {"job": "sft", "config": "s.yaml", "set": {"key": value}}}
    (step,) = plan(stages=stages)
    assert load_config(tmp_path / "c.yaml", Target, step.overrides({})).key == value


@pytest.mark.parametrize("value", [{"kind": "pasta", "model": "@sft"}, ["pasta", "@sft"]])
def test_a_reference_may_stand_inside_a_value(value):
    key = "methods.mine.model" if isinstance(value, dict) else "methods.mine.1"
    stages = {**STAGES, "evaluate": {"job": "evaluate", "config": "e.yaml", "set": {"methods.mine": value}}}
    step = plan(stages=stages)[-1]
    assert step.reads == {key: "sft"}
    assert step.overrides({"sft": Path("out/x")})[-1] == f'{key}="out/x"'
    stages["evaluate"] = {**stages["evaluate"], "set": {"methods.mine": {"model": "@nothing"}}}
    with pytest.raises(ConfigError, match=r"set\.methods\.mine\.model: '@nothing' is no stage before"):
        plan(stages=stages)


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "x"), ("output_dir", "x"), ("tracking.mode", "disabled"), ("tracking", {"group": "x"})],
)
def test_what_the_pipeline_sets_in_every_stage_is_refused_in_one(key, value):
    stages = {"sft": {"job": "sft", "config": "s.yaml", "set": {key: value}}}
    with pytest.raises(ConfigError, match=rf"stages\.sft: set\.{key}.*: has no effect"):
        plan(stages=stages)


def test_a_reference_to_a_later_stage_is_refused_by_name():
    stages = {"sft": {**STAGES["sft"], "set": {"data.source": "@annotate"}}, "annotate": STAGES["annotate"]}
    with pytest.raises(
        ConfigError, match=r"stages\.sft\.set\.data\.source: '@annotate' is no stage before this one"
    ):
        plan(stages=stages)


@pytest.mark.parametrize(
    ("stage", "key", "reference", "expected"),
    [
        ("score", "samples", "@annotate", "of job 'annotate'; expected one of job sample"),
        ("prefer", "data.source", "@sample", "of job 'sample'; expected one of job score"),
        (
            "prefer",
            "model.init_from",
            "@annotate",
            "of job 'annotate'; expected one of job sft or preference or rl",
        ),
        ("sample", "twin", "@annotate", "of job 'annotate'; expected one of job sft or preference or rl"),
    ],
)
def test_a_reference_to_a_stage_of_another_kind_is_refused(stage, key, reference, expected):
    wrong = {**ROUND, stage: {**ROUND[stage], "set": {**ROUND[stage]["set"], key: reference}}}
    said = rf"round\.{stage}\.set\.{key}: '{reference}' is a stage {expected}"
    with pytest.raises(ConfigError, match=said):
        plan(round=wrong, rounds=1)


def test_a_round_cannot_read_the_round_before_by_a_stage_name():
    swapped = {"score": ROUND["score"], "sample": ROUND["sample"]}
    with pytest.raises(ConfigError, match="'@sample' is no stage before this one"):
        plan(round=swapped, rounds=2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rounds": 2}, "rounds 2: expected a positive number with a round"),
        ({"round": ROUND, "rounds": 100_000}, "rounds 100000: expected at most 100"),
        ({"round": {"sft": STAGES["sft"]}, "rounds": 1}, "is both in stages and in round"),
        ({"stages": {"Bad name": STAGES["sft"]}}, "expected a name of a-z"),
        ({"stages": {}}, "expected at least one stage"),
        ({"stages": {"x": {"job": "sfft", "config": "c"}}}, "stages.x.job"),
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        plan(**keys)
