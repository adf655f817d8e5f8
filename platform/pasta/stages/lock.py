"""Keeps a place on disk to one process: two that wrote there at once would mix their records."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pasta.errors import UserError
from pasta.files import writing


def _is_locked(lock: TextIO, path: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    try:
        return path.stat().st_ino == os.fstat(lock.fileno()).st_ino
    except FileNotFoundError:  # another run has ended, and removed its lock, since this one opened it
        return False


@contextmanager
def sole_writer(
    output_dir: Path,
    key: str = "output_dir",
    busy: str = "another run is writing there; wait for it, or name another",
) -> Iterator[None]:
    """Keep ``output_dir``, by whatever links it is named, to this process for the time of the block. Raises UserError,
    naming ``key`` and saying ``busy``, if another one has it."""
    # Of files, such as /dev/stdout, the directory of the link is meant: their records lie there.
    place = Path(os.path.realpath(output_dir)) if os.path.isdir(output_dir) else output_dir.absolute()
    path = place.parent / f".{place.name}.lock"  # with_name refuses the root, which has no name
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    with lock:
        if not _is_locked(lock, path):
            raise UserError(f"{key}: {output_dir}: {busy}")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
