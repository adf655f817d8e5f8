"""A pipeline's matrix: what it repeats, and what it refuses."""

from pathlib import Path

import pytest

from pasta.config import ConfigError, load_config, parse_config
from pasta.stages.pipeline import Instance, PipelineConfig, instances
from tests.support.paths import ROOT

SCORE = {"job": "score", "config": "q.yaml", "set": {"weight": "{weight}"}}
PREFER = {"job": "preference", "config": "p.yaml", "set": {"data": "@score-{weight}"}}
SWEEP = {"score-{weight}": SCORE, "prefer-{weight}": PREFER}


def plan(matrix: dict, stages: dict, **keys) -> list[Instance]:
    values = {"name": "p", "output_dir": "out", "matrix": matrix, "stages": stages, **keys}
    return list(instances(parse_config(values, PipelineConfig, "p.yaml"), Path("p.yaml")))


def test_neighbours_are_repeated_together_and_read_their_own_row():
    steps = plan({"weight": [1, "inf"]}, SWEEP)
    assert [(step.name, step.reads) for step in steps] == [
        ("score-1", {}),
        ("prefer-1", {"data": "score-1"}),
        ("score-inf", {}),
        ("prefer-inf", {"data": "score-inf"}),
    ]
    assert [steps[0].section.set, steps[2].section.set] == [{"weight": 1}, {"weight": "inf"}]


def test_a_key_is_repeated_in_a_stage_that_is_not_with_other_columns_of_the_same_row():
    evaluate = {
        "job": "evaluate",
        "config": "e.yaml",
        "set": {
            "methods.m-{weight}.label": "λ={label}",
            "repeats": 2,
            "methods.m-{weight}.list": ["{label}"],
        },
    }
    (*_, step) = plan({"weight": [1, 2], "label": ["one", "two"]}, SWEEP | {"evaluate": evaluate})
    assert step.section.set == {
        "methods.m-1.label": "λ=one",
        "methods.m-2.label": "λ=two",
        "repeats": 2,
        "methods.m-1.list": ["one"],
        "methods.m-2.list": ["two"],
    }


def test_stages_of_a_round_are_repeated_in_every_round():
    steps = plan({"weight": [1, 2]}, {"first": {"job": "sft", "config": "s"}}, round=SWEEP, rounds=2)
    assert [step.name for step in steps[1:5]] == [
        "round-1-score-1",
        "round-1-prefer-1",
        "round-1-score-2",
        "round-1-prefer-2",
    ]
    assert steps[-1].reads == {"data": "round-2-score-2"}


def test_without_a_matrix_braces_are_text():
    stage = {"job": "sft", "config": "s.yaml", "set": {"data.template": "{weight}"}}
    (step,) = plan({}, {"sft": stage})
    assert step.section.set == {"data.template": "{weight}"}


@pytest.mark.parametrize(
    ("matrix", "stages", "message"),
    [
        (
            {"weight": [1, 2], "label": ["a"]},
            SWEEP,
            "matrix.label: 1 values; expected at least one, and as many",
        ),
        ({"weight": []}, SWEEP, "matrix.weight: 0 values; expected at least one"),
        ({"Weight": [1]}, SWEEP, "column 'Weight': expected a name of a-z"),
        ({"weight": [1], "label": [2]}, SWEEP, "matrix.label: has no effect: no stage contains {label}"),
        ({"weight": [1, 1]}, SWEEP, "stage 'score-{weight}': two rows of matrix make 'score-1'"),
        ({"weight": [0.5]}, SWEEP, "stage 'prefer-0.5': expected a name of a-z"),
        ({"weight": [True, [1]]}, SWEEP, "matrix.weight"),
        (
            {"weight": [1]},
            SWEEP | {"x": {**SCORE, "set": {"weight": "{wieght}"}}},
            "stage 'x': set.weight: {wieght} in '{wieght}': expected none where neither name nor key has one",
        ),
        (
            {"weight": [1]},
            {"score-{weight}": {**SCORE, "set": {"a": "{wieght}"}}},
            "stage 'score-{weight}': set.a: {wieght} in '{wieght}': expected {weight}",
        ),
        (
            {"weight": [1, 2], "label": ["a", "a"]},
            {"e": {**SCORE, "set": {"m.{label}": "{weight}"}}},
            "stage 'e': set.m.{label}: two rows of matrix make 'm.a'",
        ),
        ({"weight": [1]}, {"sft": SCORE["config"]}, "stages.sft"),
        ({"weight": [*range(1001)]}, SWEEP, "matrix.weight: 1,001 values; expected at most 100"),
    ],
)
def test_a_matrix_that_makes_no_sense_is_refused(matrix, stages, message):
    with pytest.raises(ConfigError) as error:
        plan(matrix, stages)
    assert message in str(error.value)


def test_rows_and_rounds_multiply_to_as_many_stages_as_can_be_read_at_once():
    first = {"first": {"job": "sft", "config": "s"}}
    assert len(plan({"weight": [*range(9)]}, first, round=SWEEP, rounds=55)) == 991
    with pytest.raises(
        ConfigError, match="1,009 stages, with those of every round and row of matrix; expected at"
    ):
        plan({"weight": [*range(9)]}, first, round=SWEEP, rounds=56)


def test_the_sweep_over_quality_weights_has_the_stages_it_always_had():
    """Names, configurations and references decide identities: a finished stage is found again after a change."""
    path = ROOT / "configs/pipelines/atlas-pareto.yaml"
    steps = list(instances(load_config(path, PipelineConfig), path))
    weights = {1: "1", 2: "2", 4: "4", 8: "8", "inf": "∞"}
    configs, expected = "configs", {}
    more = {"data.mode": "sequential", "data.row_length": 328}
    expected["twin-more"] = ("sft", f"{configs}/sft/atlas-pasta.yaml", more)
    expected["annotate-layout"] = ("annotate", f"{configs}/annotate/atlas-layout.yaml", {})
    expected["layout"] = ("sft", f"{configs}/sft/atlas-layout.yaml", {"data.source": "@annotate-layout"})
    expected["annotate-apar"] = ("annotate", f"{configs}/annotate/atlas-apar.yaml", {})
    expected["apar"] = ("sft", f"{configs}/sft/atlas-apar.yaml", {"data.source": "@annotate-apar"})
    expected["annotate-sot"] = ("annotate", f"{configs}/annotate/atlas-sot.yaml", {})
    expected["sot"] = ("sft", f"{configs}/sft/atlas-sot.yaml", {"data.source": "@annotate-sot"})
    expected["annotate-sot-routed"] = (
        "annotate",
        f"{configs}/annotate/atlas-sot.yaml",
        {"data.routed": True},
    )
    expected["sot-routed"] = (
        "sft",
        f"{configs}/sft/atlas-sot.yaml",
        {"data.source": "@annotate-sot-routed", "optimisation.max_steps": 5850},
    )
    sample, score, prefer = (f"{configs}/{name}/atlas.yaml" for name in ("sample", "score", "preference"))
    expected["sample-1"] = ("sample", sample, {"prompts.count": 512, "prompts.seed": 11})
    methods = {
        "methods.twin-more.kind": "sequential",
        "methods.twin-more.model": "@twin-more",
        "methods.layout.kind": "apar",
        "methods.layout.model": "@layout",
        "methods.sot.kind": "sot",
        "methods.sot.model": "@sot",
        "methods.sot.sot.style": "trained",
        "methods.sot-routed.kind": "sot",
        "methods.sot-routed.model": "@sot-routed",
        "methods.sot-routed.sot.style": "trained",
        "methods.apar.kind": "apar",
        "methods.apar.model": "@apar",
    }
    for w, label in weights.items():
        expected |= {
            f"score-1-{w}": ("score", score, {"samples": "@sample-1", "quality_weight": w}),
            f"prefer-1-{w}": ("preference", prefer, {"data.source": f"@score-1-{w}"}),
            f"sample-2-{w}": (
                "sample",
                sample,
                {"model": f"@prefer-1-{w}", "prompts.count": 256, "prompts.seed": 12},
            ),
            f"score-2-{w}": ("score", score, {"samples": f"@sample-2-{w}", "quality_weight": w}),
            f"prefer-2-{w}": (
                "preference",
                prefer,
                {"model.init_from": f"@prefer-1-{w}", "data.source": f"@score-2-{w}"},
            ),
        }
        for round_ in (1, 2):
            methods |= {
                f"methods.round-{round_}-{w}.kind": "pasta",
                f"methods.round-{round_}-{w}.model": f"@prefer-{round_}-{w}",
                f"methods.round-{round_}-{w}.line": f"round {round_}",
                f"methods.round-{round_}-{w}.label": f"λ={label}",
            }
    expected["evaluate"] = ("evaluate", f"{configs}/evaluate/atlas.yaml", methods)
    assert {
        step.name: (step.section.job, str(step.section.config), step.section.set) for step in steps
    } == expected
    assert [step.name for step in steps] == list(expected)
    assert all(
        step.reads == {key: value[1:] for key, value in step.section.set.items() if str(value)[:1] == "@"}
        for step in steps
    )
