"""The pipeline that asks why rounds unlearn their syncs: two teachers that differ in what they forget alone."""

import pytest

from pasta.config import load_config
from pasta.data.atlas.tasks import FAMILIES
from pasta.stages.pipeline import Instance, PipelineConfig, instances
from tests.support.paths import ROOT

PATH = ROOT / "configs/pipelines/atlas-imperfect-syncs.yaml"


@pytest.fixture(scope="module")
def steps() -> dict[str, Instance]:
    return {step.name: step for step in instances(load_config(PATH, PipelineConfig), PATH)}


def test_the_teachers_differ_in_the_syncs_they_forget_alone(steps: dict[str, Instance]) -> None:
    key = "data.imperfect.forgets_syncs"
    found = [steps[f"annotate-{teacher}"].section.set for teacher in ("forgets", "keeps")]
    assert found == [{key: 0.5}, {key: 0.0}]
    for stage in (
        "sft",
        *(f"{job}-{number}" for number in (1, 2, 3) for job in ("sample", "score", "prefer")),
    ):
        forgets, keeps = (str(steps[f"{stage}-{teacher}"].section.set) for teacher in ("forgets", "keeps"))
        assert forgets.replace("forgets", "keeps") == keeps


@pytest.mark.parametrize("teacher", ["forgets", "keeps"])
def test_three_rounds_go_on_from_each_other(steps: dict[str, Instance], teacher: str) -> None:
    for number in (1, 2, 3):
        before = f"sft-{teacher}" if number == 1 else f"prefer-{number - 1}-{teacher}"
        sample, score = f"sample-{number}-{teacher}", f"score-{number}-{teacher}"
        assert steps[sample].reads == {"model": before}
        assert steps[score].reads == {"samples": sample}
        assert steps[f"prefer-{number}-{teacher}"].reads == {"model.init_from": before, "data.source": score}


def test_every_round_answers_held_out_prompts_of_the_families_in_which_something_reads_the_parts(
    steps: dict[str, Instance],
) -> None:
    source = steps["ask"].section.set
    assert source["data.source.split"] == "heldout"
    left = FAMILIES.keys() - source["data.source.mixture"].keys()
    assert left == {"count", "compare", "encyclopedia"}
    assert {*source["data.source.mixture"].values()} == {0}
    models = {f"prefer-{number}-{teacher}" for number in (1, 2, 3) for teacher in ("forgets", "keeps")}
    assert {*steps["evaluate"].reads.values()} == {"ask", "sft-forgets", "sft-keeps", *models}
