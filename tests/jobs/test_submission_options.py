"""``jobs.submit`` refuses options of a job that contradict one another, before anything is sent."""

import pytest

from jobs.submission import prepare_submission
from pasta.errors import UserError
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("job", "options", "says"),
    [
        ("evaluate", ["--report-only", "--restart"], "--report-only: expected without --restart"),
        (
            "pipeline",
            ["--gpu-hours", "configs/simulate/h100-gemma-7b.yaml", "--restart", "annotate"],
            "--restart: has no effect with --gpu-hours",
        ),
        (
            "pipeline",
            ["--set", "storage=/mnt/other"],
            "--set storage=/mnt/other: --storage /mnt/pasta says where; expected one of them",
        ),
    ],
)
def test_options_that_contradict_one_another_are_refused(job, options, says):
    config = (
        ROOT / {"evaluate": "configs/evaluate/atlas.yaml", "pipeline": "configs/pipelines/atlas.yaml"}[job]
    )
    with pytest.raises(UserError) as caught:
        prepare_submission(job, options, config=config, storage="/mnt/pasta", environ={})
    assert str(caught.value).startswith(says)
