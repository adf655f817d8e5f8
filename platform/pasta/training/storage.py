"""Where a run keeps its checkpoints if not in its run directory: any place that fsspec has a URL for."""

import secrets
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from pasta.errors import UserError, first_line


def open_url(url: str) -> tuple[Any, str]:
    """The fsspec file system of ``url``, and the path in it. Raises UserError for one that cannot be had here."""
    try:
        filesystem, path = url_to_fs(url)
    except Exception as error:  # each kind of URL has its own library
        raise UserError(f"checkpoints: {url!r} cannot be opened ({first_line(error)})") from None
    return filesystem, str(path)


def check_written(url: str) -> None:
    """Raise UserError unless a file can be written at ``url`` and removed again, and other processes see it there. The
    directory stays."""
    filesystem, path = open_url(url)
    if isinstance(filesystem, MemoryFileSystem):
        raise UserError(
            f"checkpoints: {url!r} is in one process's memory; expected a place that all workers share"
        )
    probe = f"{path.rstrip('/')}/.probe-{secrets.token_hex(4)}"
    try:
        filesystem.makedirs(path, exist_ok=True)
        filesystem.pipe_file(probe, b"checkpoints are written here")
        filesystem.rm_file(probe)
    except Exception as error:  # refused access, no network: each file system has its own
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"checkpoints: {url!r} cannot be written ({reason}); expected a place to write in"
        ) from None


def remove(url: str) -> None:
    """Remove what lies at ``url``, if anything does. Raises UserError as ``open_url`` does, and if it may not."""
    filesystem, path = open_url(url)
    try:
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)
    except OSError as error:
        raise UserError(f"checkpoints: {url!r} cannot be removed ({error.strerror or error})") from None
