"""Where a run keeps its checkpoints if not in its run directory: any place that fsspec has a URL for."""

from typing import Any

from fsspec.core import url_to_fs

from pasta.errors import UserError, first_line


def open_url(url: str) -> tuple[Any, str]:
    """The fsspec file system of ``url``, and the path in it. Raises UserError for one that cannot be had here."""
    try:
        filesystem, path = url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"checkpoints: {url!r} cannot be opened ({first_line(error)})") from None
    return filesystem, str(path)


def remove(url: str) -> None:
    """Remove what lies at ``url``, if anything does. Raises UserError as ``open_url`` does, and if it may not."""
    filesystem, path = open_url(url)
    try:
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)
    except OSError as error:
        raise UserError(f"checkpoints: {url!r} cannot be removed ({error.strerror or error})") from None
