"""The pipeline of the experiment with an imperfect teacher: what starts from what, and that all of it is measured."""

from pathlib import Path

import pytest

from jobs import pipeline
from pasta.config import load_config
from pasta.evaluation.config import EvaluateConfig
from pasta.stages.pipeline import TRAINERS, Instance, PipelineConfig, instances
from pasta.training.config import SftConfig
from tests.support.paths import ROOT

PATH = ROOT / "configs/pipelines/atlas-imperfect.yaml"
WEIGHTS = [1, 2, 4, 8, "inf"]
CONTROLS = ["more-sft", "best-of-ten", "dpo", "quarter", "parallelism"]


@pytest.fixture(scope="module")
def steps() -> dict[str, Instance]:
    return {step.name: step for step in instances(load_config(PATH, PipelineConfig), PATH)}


@pytest.mark.parametrize("weight", WEIGHTS)
def test_each_round_goes_on_from_the_one_before_at_the_same_weight(
    steps: dict[str, Instance], weight: int | str
) -> None:
    for number in (1, 2, 3):
        before = "sft" if number == 1 else f"prefer-{number - 1}-{weight}"
        sample = "sample-1" if number == 1 else f"sample-{number}-{weight}"
        assert steps[sample].reads == {"model": before}
        score = steps[f"score-{number}-{weight}"]
        assert (score.reads, score.section.set["quality_weight"]) == ({"samples": sample}, weight)
        trained = steps[f"prefer-{number}-{weight}"].reads
        assert trained == {"model.init_from": before, "data.source": score.name}


def test_stage_1_starts_from_a_model_that_knows_topics(steps: dict[str, Instance]) -> None:
    config = load_config(ROOT / steps["sft"].section.config, SftConfig)
    assert Path(config.model.init_from or "").name == "pasta"


def test_every_round_has_prompts_of_its_own(steps: dict[str, Instance]) -> None:
    seeds = {
        step.name.split("-")[1]: step.section.set["prompts.seed"]
        for step in steps.values()
        if step.section.job == "sample"
    }
    assert len(set(seeds.values())) == len(seeds) == 3


def test_every_control_starts_from_stage_1_and_changes_one_thing(steps: dict[str, Instance]) -> None:
    compared = steps["prefer-1-4"]
    changes = {}
    for name in CONTROLS[1:]:
        assert steps[name].reads["model.init_from"] == compared.reads["model.init_from"] == "sft"
        assert steps[name].section.config == compared.section.config
        own = {k: v for k, v in steps[name].section.set.items() if not str(v).startswith("@")}
        changes[name] = (own, steps[name].reads["data.source"])
    assert changes == {
        "best-of-ten": ({"objective.alpha": 1.0}, "score-1-4"),
        "dpo": ({"objective.loss": "dpo"}, "score-1-4"),
        # Four times the epochs: as many updates.
        "quarter": ({"data.pairs": 86, "optimisation.epochs": 8}, "score-1-4"),
        "parallelism": ({}, "score-parallelism"),
    }
    assert steps["score-parallelism"].section.set == {
        **steps["score-1-4"].section.set,
        "speed": "parallelism",
    }
    assert steps["annotate-more"].section.set["data.source.seed"] not in {21, 31, 32, 33}


def test_every_model_is_measured(steps: dict[str, Instance]) -> None:
    trained = {step.name for step in steps.values() if step.section.job in TRAINERS}
    assert {*steps["evaluate"].reads.values()} == trained
    assert {*steps["evaluate-ends"].reads.values()} == {"sft", "prefer-3-1", "prefer-3-inf"}


def test_the_front_without_training_is_stage_1_under_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config, listed = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(PATH)]))
    evaluate = pipeline.read_stages(config, listed)["evaluate"]
    assert isinstance(evaluate, EvaluateConfig)
    lines: dict[str | None, list[float]] = {}
    for method in evaluate.methods.values():
        lines.setdefault(method.line, []).append(method.promise_bias)
    assert lines["stage 1, promise bias"] == [0, -1, 1, 2, 3]
    assert [len(lines[f"round {number}"]) for number in (1, 2, 3)] == [5, 5, 5]
    assert (evaluate.prompts.count, evaluate.repeats) == (300, 0)
    models = {
        Path(m.model or "").name for m in evaluate.methods.values() if m.line == "stage 1, promise bias"
    }
    assert len(models) == 1
