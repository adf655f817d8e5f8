"""The pipeline of the ablations: every model differs from the first in one thing, and all of them are measured."""

from pathlib import Path
from typing import get_args

import pytest

from jobs import pipeline
from pasta.config import load_config
from pasta.evaluation.config import EvaluateConfig
from pasta.lang.positions import DEFAULT, SCHEMES, Scheme
from pasta.stages.pipeline import TRAINERS, Instance, PipelineConfig, instances
from pasta.training.config import SftConfig
from tests.support.paths import ROOT

PATH = ROOT / "configs/pipelines/atlas-ablations.yaml"


@pytest.fixture(scope="module")
def steps() -> dict[str, Instance]:
    return {step.name: step for step in instances(load_config(PATH, PipelineConfig), PATH)}


def test_every_rule_of_positions_is_trained_alike(steps: dict[str, Instance]) -> None:
    recipe = {"data.documents": 4800, "optimisation.max_steps": 400}
    assert set(get_args(Scheme)) == set(SCHEMES)
    for scheme in SCHEMES:
        step = steps[f"sft-{scheme}"]
        assert step.section.set == {"model.positions": scheme, **recipe}
        config = load_config(ROOT / step.section.config, SftConfig)
        assert Path(config.model.init_from or "").name == "twin"
    assert steps["no-syncs"].section.set == {"data.syncs": False, **recipe}
    assert len({step.section.config for step in steps.values() if step.section.job == "sft"}) == 1


def test_the_two_scores_rank_the_same_answers(steps: dict[str, Instance]) -> None:
    base = f"sft-{DEFAULT}"
    assert steps["sample"].reads == {"model": base}
    for score in ("speedup", "parallelism"):
        assert steps[f"score-{score}"].reads == {"samples": "sample"}
        assert steps[f"prefer-{score}"].reads == {"model.init_from": base, "data.source": f"score-{score}"}
    changed = steps["score-parallelism"].section.set.items() - steps["score-speedup"].section.set.items()
    assert changed == {("speed", "parallelism")}


def test_every_model_is_measured(steps: dict[str, Instance]) -> None:
    trained = {step.name for step in steps.values() if step.section.job in TRAINERS}
    assert {*steps["evaluate"].reads.values()} == trained
    methods = load_config(ROOT / steps["evaluate"].section.config, EvaluateConfig).methods
    assert {key.split(".")[1] for key in steps["evaluate"].reads} == methods.keys() - {"twin"}
    wrong = {
        method.hint_factor
        for name, method in methods.items()
        if steps["evaluate"].reads.get(f"methods.{name}.model") == f"sft-{DEFAULT}"
    }
    assert wrong == {0.25, 0.5, 1.0, 2.0, 4.0}


def test_every_stage_s_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config, listed = pipeline.read_recipe(pipeline.parser().parse_args(["--config", str(PATH)]))
    stages = pipeline.read_stages(config, listed)
    assert len(stages) == 11
    shared = stages["sft-shared"]
    assert isinstance(shared, SftConfig)
    assert shared.model.positions == "shared"
    assert "atlas/models" not in str(shared.output_dir)  # the shipped model stays
