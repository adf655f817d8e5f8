"""Ray Train's list of a run's checkpoints, kept whole.

Ray Train's controller writes ``checkpoint_manager_snapshot.json`` over itself at every checkpoint. If it is killed in
that instant (by Ctrl-C, or with its machine), half of the list is left, and the next start ends with Ray's error,
although every checkpoint is there. So each list that was written whole is copied, and a cut one is replaced by the copy
before Ray reads it. The copy's checkpoints still exist: Ray deletes old ones after it has written the new list.

A checkpoint whose copying was cut, by a kill or by a full disk, is in no list: Ray would keep it for ever.

The names of the file and of checkpoints are Ray's own, in 2.60.0; tests/training/test_private.py fails when they are
others.
"""

from contextlib import suppress
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem
from ray.train import UserCallback

from pasta.rows import NotJson, parse_json

FILE = "checkpoint_manager_snapshot.json"
#: Begins the name of a checkpoint's folder.
CHECKPOINT = "checkpoint_"
#: Ends the name of a copy, and of one being written.
KEPT = ".kept"
_PART = ".part"


class KeepsCheckpointList(UserCallback):
    """Copies the list after each checkpoint. Runs in Ray Train's controller, after it has written the list.

    ``directory`` is the run's folder in ``filesystem``, None for the local one.
    """

    def __init__(self, directory: str, filesystem: FileSystem | None = None) -> None:
        self._path = f"{directory}/{FILE}"
        self._filesystem = filesystem

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Copy the list if this report has a checkpoint."""
        if checkpoint is not None:
            filesystem = self._filesystem or LocalFileSystem()
            _write(filesystem, self._path + KEPT, _read(filesystem, self._path))


def mend_checkpoint_list(directory: str, filesystem: FileSystem | None = None) -> str | None:
    """Put the copy into the place of a list that was cut. Returns what was done, in a line; None if nothing was.

    A list that is whole is copied: its controller may have been killed before it did so. Without a copy there is
    no checkpoint before the one whose writing was cut: the run begins anew. Checkpoints that are not in the list are
    deleted. No other process may write in ``directory``.
    """
    filesystem = filesystem or LocalFileSystem()
    path = f"{directory}/{FILE}"
    mended = _mend(filesystem, path)
    _delete_unlisted(filesystem, directory, _read(filesystem, path) if _is_there(filesystem, path) else b"")
    return mended


def has_list(directory: str, filesystem: FileSystem | None = None) -> bool:
    """Whether a run has a list of checkpoints in ``directory``."""
    return _is_there(filesystem or LocalFileSystem(), f"{directory}/{FILE}")


def _mend(filesystem: FileSystem, path: str) -> str | None:
    if not _is_there(filesystem, path):
        return None
    if _is_whole(found := _read(filesystem, path)):
        _write(filesystem, path + KEPT, found)
        return None
    if not _is_there(filesystem, path + KEPT):
        filesystem.delete_file(path)
        return "the list of its checkpoints was cut at the first one; training starts again"
    _write(filesystem, path, _read(filesystem, path + KEPT))
    return "the list of its checkpoints was cut; the one before it is taken"


def _delete_unlisted(filesystem: FileSystem, directory: str, listed: bytes) -> None:
    for found in filesystem.get_file_info(FileSelector(directory, allow_not_found=True)):
        name = found.base_name
        is_one = found.type == FileType.Directory and name.startswith(CHECKPOINT)
        if is_one and name.encode() not in listed:
            with suppress(OSError):  # it takes room, and nothing else
                filesystem.delete_dir(found.path)


def _is_there(filesystem: FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type == FileType.File)


def _is_whole(content: bytes) -> bool:
    try:
        parse_json(content)
    except NotJson:
        return False
    return True


def _read(filesystem: FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _write(filesystem: FileSystem, path: str, content: bytes) -> None:
    """Write whole or not at all."""
    with filesystem.open_output_stream(path + _PART) as stream:
        stream.write(content)
    filesystem.move(path + _PART, path)
