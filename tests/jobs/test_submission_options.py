"""``jobs.submit`` refuses options of a job that contradict one another, before anything is sent."""

import shlex

import pytest

from jobs import submit
from jobs.pipeline import parser
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


PIPELINE = ROOT / "configs" / "pipelines" / "atlas.yaml"
SIMULATION = "configs/simulate/h100-gemma-7b.yaml"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (SIMULATION, SIMULATION),
        (f"./{SIMULATION}", SIMULATION),
        (str(ROOT / SIMULATION), SIMULATION),
        ("runs/h100.yaml", "/mnt/pasta/runs/h100.yaml"),
        ("/mnt/pasta/h100.yaml", "/mnt/pasta/h100.yaml"),
    ],
)
def test_the_simulation_of_a_pipeline_is_named_as_the_cluster_sees_it(given, seen):
    for option in (["--gpu-hours", given], [f"--gpu-hours={given}"]):
        sent = prepare_submission("pipeline", option, config=PIPELINE, storage="/mnt/pasta", environ={})
        options = parser().parse_args(shlex.split(sent.entrypoint)[3:])
        assert str(options.gpu_hours) == seen


@pytest.mark.parametrize("given", ["h100.yaml", "docs/h100.yaml", "../h100.yaml", str(ROOT / "h100.yaml")])
def test_a_simulation_that_is_not_sent_is_refused(given):
    with pytest.raises(
        UserError, match=rf"^--gpu-hours {given}: is not sent to the cluster; expected a file below "
    ):
        prepare_submission(
            "pipeline", ["--gpu-hours", given], config=PIPELINE, storage="/mnt/pasta", environ={}
        )


@pytest.mark.parametrize("command", ["tail", "stop"])
@pytest.mark.parametrize("given", ["../x", "a?b", "a#b", "a%2Fb"])
def test_what_cannot_be_a_job_s_id_is_told_at_once(command, given, capsys):
    with pytest.raises(SystemExit) as caught:
        submit.main([command, given], environ={})
    assert caught.value.code == 2
    assert f"argument ID: '{given}', expected an id as list shows it" in capsys.readouterr().err
