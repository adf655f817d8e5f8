"""The pipeline that compares objectives of rounds: what is compared differs in α alone, and all of it is measured."""

import pytest

from pasta.config import load_config
from pasta.stages.pipeline import Instance, PipelineConfig, instances
from tests.support.paths import ROOT

PATH = ROOT / "configs/pipelines/atlas-imperfect-best.yaml"
ALPHAS = {"bonbon": 0.005, "best": 1.0, "mixed": 0.95}
WEIGHTS = (1, 2, 4, 8, "inf")
ROWS = [
    *(f"bonbon-{weight}" for weight in (4, 8, "inf")),
    *(f"best-{weight}" for weight in WEIGHTS),
    "mixed-4",
    "mixed-inf",
]
WRITTEN = [f"best-{weight}-written" for weight in (1, 4)]
AGAIN = [
    *(f"bonbon-{weight}-again" for weight in (4, "inf")),
    *(f"best-{weight}-again" for weight in WEIGHTS),
]


@pytest.fixture(scope="module")
def steps() -> dict[str, Instance]:
    return {step.name: step for step in instances(load_config(PATH, PipelineConfig), PATH)}


@pytest.mark.parametrize("row", [*ROWS, *WRITTEN, *AGAIN])
def test_three_rounds_go_on_from_each_other_by_their_own_objective_and_weight(
    steps: dict[str, Instance], row: str
) -> None:
    name, weight = row.split("-")[:2]
    for number in (1, 2, 3):
        before = "sft" if number == 1 else f"prefer-{number - 1}-{row}"
        sample = f"sample-{number}-{row}" if number > 1 else "sample-1-again" if row in AGAIN else "sample-1"
        assert steps[sample].reads == {"model": before}
        score, trained = steps[f"score-{number}-{row}"], steps[f"prefer-{number}-{row}"]
        assert (score.reads, str(score.section.set["quality_weight"])) == ({"samples": sample}, weight)
        assert score.section.set["speed"] == ("written" if row in WRITTEN else "speedup")
        assert trained.reads == {"model.init_from": before, "data.source": score.name}
        assert trained.section.set["objective.alpha"] == ALPHAS[name]


def test_rows_of_a_weight_and_a_run_differ_in_alpha_alone(steps: dict[str, Instance]) -> None:
    def changed(row: str) -> list[dict[str, object]]:
        stages = (f"{job}-{number}-{row}" for number in (1, 2, 3) for job in ("score", "prefer", "sample"))
        return [
            {
                key: value
                for key, value in steps[stage].section.set.items()
                if key != "objective.alpha" and not (str(value).startswith("@") and str(value).endswith(row))
            }
            for stage in stages
            if stage in steps
        ]

    for weight, names in ((4, ("best", "mixed")), (8, ("best",)), ("inf", ("best", "mixed"))):
        for name in names:
            assert changed(f"{name}-{weight}") == changed(f"bonbon-{weight}")
    for weight in (4, "inf"):
        assert changed(f"best-{weight}-again") == changed(f"bonbon-{weight}-again")


def test_the_second_run_has_other_prompts_samples_and_order(steps: dict[str, Instance]) -> None:
    for number in (1, 2, 3):
        first, again = (
            steps["sample-1" if number == 1 else f"sample-{number}-best-4"].section.set,
            steps["sample-1-again" if number == 1 else f"sample-{number}-best-4-again"].section.set,
        )
        for key in ("prompts.seed", "sampling.seed"):
            assert first.get(key, 0) != again[key]
        orders = [
            steps[f"prefer-{number}-{row}"].section.set["optimisation.seed"]
            for row in ("best-4", "best-4-again")
        ]
        assert orders == [0, 1]


def test_the_models_of_every_row_are_measured_round_by_round(steps: dict[str, Instance]) -> None:
    assert {*steps["evaluate"].reads.values()} == {
        "sft",
        *(f"prefer-{number}-{row}" for number in (1, 2, 3) for row in (*ROWS, *WRITTEN, *AGAIN)),
    }
