"""Checkpoints at a URL: what counts as one, and what a run does with it before any worker starts."""

import pytest

from jobs import sft
from jobs.checkpoint_list import FILE
from jobs.training import _checkpoints, look_at_checkpoints
from pasta.config import parse_config
from pasta.errors import UserError
from pasta.training.config import SftConfig
from pasta.training.save import check_run_and_output
from pasta.training.sft import prepare
from tests.training.runs import sft_dict


def config(directory, **keys):
    return parse_config(sft_dict(directory) | keys, SftConfig, "tiny.yaml")


def test_by_default_they_are_in_the_run_directory(tmp_path):
    stage = sft.stage(config(tmp_path))
    assert stage.checkpoints is None
    assert _checkpoints(stage) == (str(stage.run_dir), None)


def test_each_run_has_a_place_of_its_own_below_the_url(tmp_path):
    url = (tmp_path / "bucket").as_uri()
    stage = sft.stage(config(tmp_path, checkpoints=f"{url}/"))
    assert stage.checkpoints == f"{url}/{stage.run_dir.name}"
    path, filesystem = _checkpoints(stage)
    assert path == str(tmp_path / "bucket" / stage.run_dir.name)
    with filesystem.open_output_stream(f"{tmp_path}/here") as file:
        file.write(b"x")
    assert (tmp_path / "here").read_bytes() == b"x"


def test_where_they_are_makes_no_other_run(tmp_path):
    here, there = sft.stage(config(tmp_path)), sft.stage(config(tmp_path, checkpoints="memory://bucket"))
    assert here.identity == there.identity


def test_a_run_whose_checkpoints_are_elsewhere_says_that_it_begins_anew(tmp_path):
    """With another URL in the middle of a run its checkpoints were not found, and nothing said so."""
    stage = sft.stage(config(tmp_path, checkpoints=(tmp_path / "bucket").as_uri()))
    place, filesystem = _checkpoints(stage)
    assert look_at_checkpoints(stage, f"{place}/ray", filesystem) is None  # the run has not begun
    (stage.run_dir / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    told = look_at_checkpoints(stage, f"{place}/ray", filesystem)
    assert told == (
        f"checkpoints: {place}/ray has none of this run, which made some: training starts from the beginning; name the "
        "place where they are to go on from there"
    )
    (tmp_path / "bucket" / stage.run_dir.name / "ray").mkdir(parents=True)
    (tmp_path / "bucket" / stage.run_dir.name / "ray" / FILE).write_text("{}")
    assert look_at_checkpoints(stage, f"{place}/ray", filesystem) is None


def test_restart_removes_this_run_s_and_no_other_s(tmp_path):
    bucket = tmp_path / "bucket"
    elsewhere = config(tmp_path, checkpoints=bucket.as_uri())
    ours, others = bucket / sft.stage(elsewhere).run_dir.name, bucket / "other-run"
    for directory in (ours, others):
        (directory / "ray").mkdir(parents=True)
    sft.stage(elsewhere)
    assert ours.is_dir()
    stage = sft.stage(elsewhere, restart=True)
    assert ours.is_dir(), "nothing is deleted before the run starts"
    stage.start(tmp_path)
    assert not ours.exists()
    assert others.is_dir()


@pytest.mark.parametrize("value", ["runs/checkpoints", "/mnt/pasta", "s3:bucket", "s3://"])
def test_a_path_is_no_url(tmp_path, value):
    with pytest.raises(UserError, match=r"checkpoints .*expected a URL such as s3://bucket/path"):
        config(tmp_path, checkpoints=value)


def test_a_url_of_an_unknown_kind_is_one_line(tmp_path):
    with pytest.raises(UserError) as caught:
        sft.stage(config(tmp_path, checkpoints="nowhere://bucket/path"))
    assert str(caught.value).startswith("checkpoints: 'nowhere://bucket/path/tiny-")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///proc/bucket", "http://127.0.0.1:1/bucket"])
def test_a_place_that_cannot_be_written_is_told_before_the_data_are_made(tmp_path, url):
    with pytest.raises(
        UserError, match=r"^checkpoints: '.*' cannot be written \(.+\); expected a place to "
    ) as caught:
        prepare(config(tmp_path, checkpoints=url), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_looking_whether_a_place_can_be_written_leaves_no_file(tmp_path):
    check_run_and_output(config(tmp_path, checkpoints=(tmp_path / "new" / "bucket").as_uri()))
    assert [*(tmp_path / "new").rglob("*")] == [tmp_path / "new" / "bucket"]


def test_memory_is_no_place_that_workers_share(tmp_path):
    with pytest.raises(
        UserError, match=r"^checkpoints: 'memory://bucket' .*; expected a place that all workers share"
    ):
        check_run_and_output(config(tmp_path, checkpoints="memory://bucket"))
