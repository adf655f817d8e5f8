"""Checks a configuration's paths for a job on a cluster: which are sent along, and which lie on storage that all nodes
share."""

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pasta.config import leaves, to_dict
from pasta.errors import UserError

#: The folders of the repository that a job on a cluster gets; .rayignore leaves out all others.
SENT = ("configs", "jobs", "platform", "serve")
#: Where jobs write, unless told otherwise; it is never sent.
RUNS = "runs"
#: Keys of places that a job writes to.
OUTPUTS = ("output_dir", "run_dir", "judgements_dir")


def shared(storage: str) -> Path:
    """The directory that ``--storage`` names, by a path or by a URL of the form file:///PATH. Raises UserError."""
    parts = urlsplit(storage)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
    elif "://" in storage:
        raise UserError(
            f"--storage {storage}: expected a path, or a URL of the form file:///PATH; finished work is put in place "
            "by renaming it, which no bucket can (a training run's checkpoints may lie in one: --set checkpoints=URL)"
        )
    else:
        path = Path(storage)
    if not path.is_absolute():
        raise UserError(
            f"--storage {storage}: expected an absolute path, which all nodes of the cluster share"
        )
    return path


def relocated(config: Any, storage: Path) -> list[str]:
    """``KEY=VALUE`` for every path of ``config`` that begins with runs/: there it begins with ``storage``/runs/.

    Where a mapping has keys with dots, such as a stage's ``set``, or with ``=``, as methods may have, KEY names the
    mapping: a dot in KEY leads to a section, and ``=`` ends it.
    """
    # JSON escapes what YAML would take for the end of a line, such as U+2028.
    return [f"{key}={json.dumps(value)}" for key, value in _changed(to_dict(config), storage)]


def _changed(value: Any, storage: Path, key: str = "") -> Iterator[tuple[str, Any]]:
    """What differs between ``value`` and ``_on(value, storage)``, in as small parts as dotted keys can name."""
    moved = _on(value, storage)
    if moved == value:
        return
    if isinstance(value, str) or (isinstance(value, dict) and any({".", "="} & {*name} for name in value)):
        yield key, moved
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _changed(inner, storage, f"{key}.{name}" if key else str(name))


def _on(value: Any, storage: Path) -> Any:
    """``value`` with its paths that begin with runs/ on ``storage``."""
    if isinstance(value, dict):
        return {name: _on(inner, storage) for name, inner in value.items()}
    if isinstance(value, list):
        return [_on(inner, storage) for inner in value]
    return str(storage / value) if isinstance(value, str) and value.startswith(f"{RUNS}/") else value


def _is_here(root: Path, value: str, *, one_word: bool) -> bool:
    """Whether ``value`` names something below ``root``. One word is a path if a file has that name: words are names of
    methods and of runs, too."""
    place = os.path.join(root, value)
    if glob.has_magic(value):
        return any(glob.iglob(place, recursive=True))
    return os.path.isfile(place) if one_word else os.path.exists(place)


def check_paths(config: Any, root: Path, where: str = "") -> None:
    """Raise UserError, naming the key after ``where``, for a path that means nothing on the nodes of a cluster.

    Refused are places to write inside the job's working directory, which is deleted with the job, and files below
    ``root`` that are not sent.
    """
    for key, value in leaves(to_dict(config)):
        if not isinstance(value, str) or value.startswith("/"):
            continue
        if key.rpartition(".")[2] in OUTPUTS:
            raise UserError(
                f"{where}{key}: {value!r} would be deleted with the job's working directory; expected an absolute path "
                f"on storage that all nodes share (--storage moves what begins with {RUNS}/)"
            )
        first, *others = PurePosixPath(value).parts or ("",)
        if first not in SENT and (
            (others and first in (RUNS, "..")) or _is_here(root, value, one_word=not others)
        ):
            raise UserError(
                f"{where}{key}: {value!r} is not sent to the cluster; expected a path below {', '.join(SENT)}, or an "
                f"absolute one on storage that all nodes share (--storage moves what begins with {RUNS}/)"
            )
