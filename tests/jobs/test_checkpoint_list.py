"""Ray Train's list of checkpoints: a copy is kept, and takes the place of one that was cut while Ray wrote it."""

import json

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from jobs.checkpoint_list import FILE, KEPT, KeepsCheckpointList, mend_checkpoint_list

CUT = [b"", b'{"checkpoint_resul', b'{"version": "\xc3']


def reported(directory, checkpoint="a checkpoint"):
    KeepsCheckpointList(str(directory)).after_report(None, [{}], checkpoint)


@pytest.mark.parametrize("cut", CUT)
def test_a_list_that_was_cut_is_replaced_by_the_one_before(tmp_path, cut):
    (tmp_path / FILE).write_text(json.dumps({"checkpoints": [1]}))
    reported(tmp_path)
    (tmp_path / FILE).write_bytes(cut)
    assert (
        mend_checkpoint_list(str(tmp_path))
        == "the list of its checkpoints was cut; the one before it is taken"
    )
    assert json.loads((tmp_path / FILE).read_text()) == {"checkpoints": [1]}
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, FILE + KEPT]


def test_a_whole_list_stays_as_it_is(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"checkpoints": [1]}))
    reported(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"checkpoints": [1, 2]}))
    assert mend_checkpoint_list(str(tmp_path)) is None
    assert json.loads((tmp_path / FILE).read_text()) == {"checkpoints": [1, 2]}


def test_a_whole_list_without_its_copy_is_copied_before_the_next_one_is_written(tmp_path):
    """Its controller was killed between the two, or was an earlier commit's, which made no copy."""
    (tmp_path / FILE).write_text(json.dumps({"checkpoints": [1]}))
    assert mend_checkpoint_list(str(tmp_path)) is None
    (tmp_path / FILE).write_bytes(b"")
    assert "the one before it is taken" in mend_checkpoint_list(str(tmp_path))
    assert json.loads((tmp_path / FILE).read_text()) == {"checkpoints": [1]}


def test_a_first_list_that_was_cut_is_removed_for_there_is_none_before(tmp_path):
    (tmp_path / FILE).write_bytes(b"")
    assert mend_checkpoint_list(str(tmp_path)) == (
        "the list of its checkpoints was cut at the first one; training starts again"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("last", [b"", None], ids=["cut", "whole"])
def test_checkpoints_that_are_in_no_list_are_deleted(tmp_path, last):
    """Their copying was cut, by a kill or by a full disk: they take the room of a whole one."""
    (tmp_path / FILE).write_text(
        json.dumps({"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_1"}]})
    )
    reported(tmp_path)
    if last is not None:
        (tmp_path / FILE).write_bytes(last)
    for name in ("checkpoint_1", "checkpoint_2", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").touch()
    mend_checkpoint_list(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["checkpoint_1", "others"]


def test_a_run_without_checkpoints_has_nothing_to_mend(tmp_path):
    assert mend_checkpoint_list(str(tmp_path / "new")) is None


def test_a_report_without_a_checkpoint_copies_nothing(tmp_path):
    reported(tmp_path, checkpoint=None)
    assert not list(tmp_path.iterdir())


def test_checkpoints_at_a_url_have_their_copy_there():
    memory = MemoryFileSystem()
    filesystem = PyFileSystem(FSSpecHandler(memory))
    memory.pipe(f"/bucket/ray/{FILE}", b"[1]")
    memory.pipe("/bucket/ray/checkpoint_2/weights", b"")
    KeepsCheckpointList("/bucket/ray", filesystem).after_report(None, [{}], "a checkpoint")
    memory.pipe(f"/bucket/ray/{FILE}", b"[1, ")
    assert mend_checkpoint_list("/bucket/ray", filesystem) is not None
    assert memory.cat(f"/bucket/ray/{FILE}") == b"[1]"
    assert not memory.exists("/bucket/ray/checkpoint_2")
