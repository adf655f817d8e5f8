"""Files of a report, whole or not at all."""

import contextlib
import os
from pathlib import Path

from pasta.errors import UserError


def write_bytes(path: Path, data: bytes) -> Path:
    """Write into a temporary file beside it, then rename. Raises UserError if the file cannot be written."""
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging.write_bytes(data)
        os.replace(staging, path)
    except OSError as error:
        raise UserError(f"{str(path)!r}: cannot be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(OSError):  # what went wrong is told already
            staging.unlink(missing_ok=True)
    return path
