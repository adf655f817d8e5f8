"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pasta.errors import UserError


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file beside ``path``, then put it in its place; its directory is made if there is none. Text is UTF-8.

    ``private``: nobody but its owner may read it. Raises UserError if it cannot be written, for a disk that is full
    as for any other reason.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.touch(mode=0o600 if private else 0o666)
            with staging.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            staging.replace(path)
        finally:
            staging.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise UserError, naming ``path``, for what the operating system refuses in the block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{str(path)!r}: cannot be written ({error.strerror or error})") from None
