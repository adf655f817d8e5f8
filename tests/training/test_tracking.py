"""Offline runs hold what was logged: read back from the run file itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pasta.errors import UserError
from pasta.tracking import Tracker, TrackingSection, WandbTracker, forget_run, start_tracker
from tests.support.wandb_runs import history, read_run, wait_until_written


@pytest.mark.slow
def test_an_offline_run_can_be_read_back(tmp_path: Path) -> None:
    tracker = start_tracker(
        TrackingSection(), run_dir=tmp_path, name="twin", job="sft", config={"lr": 0.5, "nested": {"a": 1}}
    )
    tracker.log({"train/loss": 2.5}, step=1)
    tracker.log({"train/loss": 1.5, "eval/loss": 3.0}, step=2)
    tracker.summary({"final": 7.0})
    tracker.finish()
    (run_file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until_written(run_file)
    rows = history(run_file)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [2.5, 1.5]
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [3.0]
    runs = [record.run for record in read_run(run_file) if record.HasField("run")]
    assert runs[0].project == "pasta"
    assert runs[0].display_name == "twin"
    assert {item.key for item in runs[0].config.update} >= {"lr", "nested"}


@pytest.mark.slow
def test_a_table_belongs_to_the_step_before_it_and_does_not_end_it(tmp_path: Path) -> None:
    tracker = start_tracker(TrackingSection(), run_dir=tmp_path, name="x", job="sft", config={})
    tracker.log({"eval/loss": 3.0}, step=2)
    tracker.table("eval/examples", ["prompt"], [["tea"]])
    tracker.log({"eval/speedup": 1.5}, step=2)
    tracker.finish()
    (run_file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until_written(run_file)
    (row,) = (row for row in history(run_file) if "eval/examples/_type" in row)
    assert (row["eval/loss"], row["eval/speedup"]) == (3.0, 1.5)


@pytest.mark.slow
def test_a_run_lies_in_its_directory_and_needs_no_home(tmp_path: Path) -> None:
    """One that is full or cannot be written: training ended at its first table, in a stack trace."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pasta.tracking import TrackingSection, start_tracker\n"
        "before = dict(os.environ)\n"
        "tracker = start_tracker(TrackingSection(), run_dir=Path(sys.argv[1]), name='w', job='sft', config={})\n"
        "tracker.table('eval/examples', ['prompt'], [['tea']])\n"
        "tracker.finish()\n"
        "assert dict(os.environ) == before\n"
    )
    home = tmp_path / "home"
    home.touch()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in tmp_path.glob("run/wandb/artifacts/staging/*") if "tea" in path.read_text()]


@pytest.mark.slow
def test_a_picture_is_logged_and_kept_with_the_run(tmp_path: Path) -> None:
    picture = tmp_path / "front.png"
    Image.new("RGB", (40, 20), "white").save(picture)
    tracker = start_tracker(TrackingSection(), run_dir=tmp_path, name="twin", job="evaluate", config={})
    tracker.image("evaluate/front", picture)
    tracker.finish()
    (run_file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until_written(run_file)
    (logged,) = (row for row in history(run_file) if "evaluate/front/path" in row)
    assert (logged["evaluate/front/_type"], logged["evaluate/front/width"]) == ("image-file", 40)
    assert (run_file.parent / "files" / logged["evaluate/front/path"]).read_bytes() == picture.read_bytes()


def test_a_run_that_w_and_b_refuses_is_one_line_that_shows_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    options = TrackingSection(mode="online")
    with pytest.raises(
        UserError, match=r"^tracking\.mode: online: W&B has not begun a run \(.*key"
    ) as caught:
        start_tracker(options, run_dir=tmp_path, name="twin", job="sft", config={})
    assert "\n" not in str(caught.value)
    assert "short" not in str(caught.value)
    assert "WANDB_DATA_DIR" not in os.environ


def test_other_ranks_and_disabled_runs_write_nothing(tmp_path: Path) -> None:
    for options, rank in ((TrackingSection(), 1), (TrackingSection(mode="disabled"), 0)):
        tracker = start_tracker(options, run_dir=tmp_path, name="x", job="sft", config={}, rank=rank)
        assert type(tracker) is Tracker
        tracker.log({"a": 1.0}, step=1)
        tracker.image("b", tmp_path / "b.png")
        tracker.finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_keeps_its_id_in_its_directory_and_another_one_of_the_same_path_has_its_own(
    tmp_path: Path,
) -> None:
    """Containers that all work in one path must not write into one run of W&B."""
    ids, run_dir = [], tmp_path / "run"
    for container in ("a", "a", "b"):
        if container == "b":
            run_dir.rename(tmp_path / "other")
        tracker = start_tracker(TrackingSection(), run_dir=run_dir, name="x", job="sft", config={})
        assert isinstance(tracker, WandbTracker)
        ids.append(tracker.id)
        tracker.finish()
    assert ids[0] == ids[1] != ids[2]
    forget_run(run_dir)
    again = start_tracker(TrackingSection(), run_dir=run_dir, name="x", job="sft", config={})
    assert isinstance(again, WandbTracker)
    assert again.id not in ids
    again.finish()


@pytest.mark.slow
def test_a_run_whose_worker_was_killed_is_taken_up_again(tmp_path: Path) -> None:
    """Also where the parent of both workers has tracked a run itself, as a pipeline and its stages do."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pasta.tracking import TrackingSection, start_tracker\n"
        "tracker = start_tracker(TrackingSection(), run_dir=Path(sys.argv[1]), name='w', job='sft', config={})\n"
        "tracker.log({'step': float(sys.argv[2])}, step=int(sys.argv[2]))\n"
        "os._exit(9) if sys.argv[2] == '1' else tracker.finish()\n"
    )
    parent = start_tracker(TrackingSection(), run_dir=tmp_path / "parent", name="p", job="x", config={})
    codes = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "worker"), step], timeout=120, check=False
        ).returncode
        for step in ("1", "2")
    ]
    parent.finish()
    assert codes == [9, 0]
