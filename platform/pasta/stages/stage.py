"""Stages of work on disk: each has an immutable output directory with a manifest, which appears only when it is
complete.

A stage's identity is a digest of its configuration (without its names and output directory) and of its inputs.
Unfinished work lies beside the output, in a hidden directory named after that identity: the same stage started again
finds it and continues, another stage never takes it for its own. A stage may keep a part of what others left
(``StageOutput.reuses``). A finished output is also found where its inputs were moved (``Stage.named_as``).
"""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pasta.config import config_fingerprint, to_dict
from pasta.errors import UserError
from pasta.files import check_replaced, write_whole, writing
from pasta.rows import by_dotted_key, read_json

MANIFEST = "manifest.json"
# A result does not depend on these keys: its names, where it goes, and how it is tracked.
_NOT_CONTENT = ("name", "output_dir", "run_dir", "checkpoints", "tracking")
# These follow from other keys and from files: a user knows those, and no digest.
_DIGESTS = frozenset({"prompt_ids"})
_IDENTITY = 16  # hexadecimal digits
#: How the fingerprint of a name on the Hub begins.
_HUB_NAME = "name:"
# A file above this size is identified by size and time: to hash a 16 GB model at every start would take a minute.
_HASHED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished stage's description of itself; ``inputs`` maps each input's name to its path and fingerprint."""

    stage: str
    identity: str
    config: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    code_version: str
    figures: dict[str, Any]
    finished: str


class Stage:
    """The definition of a stage: its configuration, its inputs, and the identity that follows from both.

    ``inputs`` are paths, or names of what lies elsewhere. Raises UserError, naming the input, for a missing path.
    """

    def __init__(self, stage: str, config: Any, inputs: Mapping[str, str | Path]) -> None:
        self.stage = stage
        self.config = {key: value for key, value in to_dict(config).items() if key not in _NOT_CONTENT}
        self.inputs = {
            name: {"path": str(path), "fingerprint": input_fingerprint(name, path)}
            for name, path in inputs.items()
        }
        self.identity = self.identity_with(self.config)
        self._finished = {name: _finished(value["path"]) for name, value in self.inputs.items()}

    def identity_with(self, config: Mapping[str, Any]) -> str:
        """The identity that this stage would have with another ``config``, which has no names and directories."""
        read = json.dumps({name: value["fingerprint"] for name, value in self.inputs.items()}, sort_keys=True)
        text = f"{self.stage} {config_fingerprint(config)} {read}"
        return hashlib.sha256(text.encode()).hexdigest()[:_IDENTITY]

    def check_outside(self, path: Path, key: str) -> None:
        """Raise UserError, naming ``key``, for a ``path`` within an input that is known by all files in it: what this
        stage writes would make another input of it, and no later run would find what was done."""
        for name, value in self.inputs.items():
            source = Path(os.path.realpath(value["path"]))
            within = source in Path(os.path.realpath(path)).parents
            if within and source.is_dir() and read_manifest(source) is None:
                raise UserError(
                    f"{key}: {path}: lies in {name} ({source}), which it would change; name one outside"
                )

    def made(self, manifest: Manifest) -> bool:
        """Whether ``manifest`` describes this stage's output, wherever its inputs lay then."""
        return manifest.identity in (self.identity, self.identity_with(self.named_as(manifest.config)))

    def named_as(self, config: Mapping[str, Any], names: Container[str] | None = None) -> dict[str, Any]:
        """This stage's configuration with the paths of its inputs (of those in ``names``, if given) as ``config`` has
        them, where the same was found: moved, copied, or named by a link."""
        earlier = by_dotted_key(config)
        same = {
            name
            for name, value in self.inputs.items()
            if (names is None or name in names) and _is_same(Path(value["path"]), earlier.get(name))
        }
        return _renamed(self.config, config, same)

    def reuses(self, directory: Path) -> bool:
        """Whether a part of what another stage has left in ``directory``, finished or not, holds for this one too."""
        return False

    def newer_inputs(self, directory: Path) -> list[str]:
        """The inputs that a stage has finished after this one's output in ``directory``, each with its own directory;
        empty if the output is not this stage's.

        An input that is made again has the identity that it had, whatever it holds now: what was made of it before is
        still found as done.
        """
        manifest = read_manifest(directory)
        if manifest is None or not self.made(manifest):
            return []
        return [
            f"{name} ({value['path']})"
            for name, value in self.inputs.items()
            if _finished(value["path"]) > manifest.finished
        ]

    def changed_inputs(self) -> list[str]:
        """The inputs that hold something else than when this stage was made, each with its place. One that has been
        moved away is none of them."""
        return [
            f"{name} ({value['path']})"
            for name, value in self.inputs.items()
            if os.path.exists(value["path"])
            and (input_fingerprint(name, value["path"]), _finished(value["path"]))
            != (value["fingerprint"], self._finished[name])
        ]

    def to_manifest(self, figures: Mapping[str, Any], code_version: str) -> Manifest:
        """The manifest of this stage, finished now."""
        return Manifest(
            stage=self.stage,
            identity=self.identity,
            config=self.config,
            inputs=self.inputs,
            code_version=code_version,
            figures=dict(figures),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def difference(self, other: Manifest) -> str:
        """The first thing that ``other`` was made with differently: of an input, its content, wherever it lay."""
        if other.stage != self.stage:
            return f"not {self.stage!r}"
        prints = {name: value.get("fingerprint") for name, value in other.inputs.items()}
        same = {name for name, value in self.inputs.items() if prints.get(name) == value["fingerprint"]}
        ours, theirs = by_dotted_key(self.named_as(other.config, same)), by_dotted_key(other.config)
        keys = ours.keys() | theirs.keys()
        # A name on the Hub has no content here: it is its own difference.
        edited = {
            name
            for name in prints.keys() & self.inputs.keys() - same
            if not self.inputs[name]["fingerprint"].startswith(_HUB_NAME)
        }
        if changed := changed_key(ours, theirs, keys - _DIGESTS - edited):
            return changed
        for name, value in self.inputs.items():
            if name not in same:
                path, before = value["path"], other.inputs.get(name, value)["path"]
                moved = "" if path == before else f"{before} instead of "
                return f"another content of {name} ({moved}{path})"
        return changed_key(ours, theirs, keys & _DIGESTS) or "another identity"


class StageOutput(Stage):
    """One stage's way from nothing to a finished directory.

    ``work_dir`` is where a run writes and where the next run finds what was done. ``finish`` turns it into
    ``output_dir``. With ``restart``, ``start`` deletes what this stage has left in the former, and ``replace`` what is
    in the latter. A finished output of another stage that this one reuses (``reuses``) becomes unfinished work, under
    its own identity, when this stage finishes: its configuration finds it there. Raises UserError, naming ``key``, if
    ``output_dir`` holds something else, lies in an input or cannot be made.
    """

    def __init__(
        self,
        output_dir: Path,
        stage: str,
        config: Any,
        inputs: Mapping[str, str | Path],
        *,
        restart: bool = False,
        key: str = "output_dir",
    ) -> None:
        super().__init__(stage, config, inputs)
        self.check_outside(output_dir, key)
        self.output_dir, self._key = output_dir, key
        self.work_dir = self._work_dir(self.identity)
        self.manifest = read_manifest(output_dir)
        #: A finished stage in ``output_dir`` whose place this one will take.
        self.earlier: Manifest | None = None
        if self.manifest is not None and self.manifest.stage != stage:
            raise UserError(
                f"{key}: {output_dir}: holds stage {self.manifest.stage!r}, not {stage!r}; name another directory"
            )
        #: Whether ``start`` or ``replace`` will still delete what this stage has left.
        self.restarts = restart
        self._replaces = restart and self.manifest is not None
        if self._replaces:
            self.manifest = None
        if self.manifest is not None and not self.made(self.manifest):
            if not self.reuses(output_dir):
                raise UserError(
                    f"{key}: {output_dir}: holds stage {self.manifest.stage!r} with "
                    f"{self.difference(self.manifest)}; name another directory, or say --restart to make it anew"
                )
            self.earlier, self.manifest = self.manifest, None
        if self.manifest is None:
            check_replaced(output_dir, key)
            is_other = output_dir.exists() and not self._replaces and self.earlier is None
            if is_other and (not output_dir.is_dir() or any(output_dir.iterdir())):
                raise UserError(
                    f"{key}: {output_dir}: exists and is no finished stage; name another or move it away"
                )

    def _work_dir(self, identity: str) -> Path:
        return self.output_dir.parent / f".{self.output_dir.name}.{identity}.partial"

    @property
    def set_aside(self) -> Path | None:
        """Where the finished stage goes whose place this one will take."""
        return None if self.earlier is None else self._work_dir(self.earlier.identity)

    @property
    def is_done(self) -> bool:
        """Whether ``output_dir`` already holds exactly this stage."""
        return self.manifest is not None

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run left unfinished work."""
        return not self.restarts and self.work_dir.is_dir() and any(self.work_dir.iterdir())

    def unfinished_others(self) -> list[Path]:
        """The directories of unfinished work for ``output_dir`` with another configuration or other inputs."""
        found = unfinished_work(self.output_dir.parent, glob.escape(self.output_dir.name))
        return [path for path in found if path != self.work_dir]

    def start(self) -> Path:
        """The working directory, made if it is not there. Raises UserError if another run has finished the stage since
        this one looked for it."""
        found = read_manifest(self.output_dir)
        if self.manifest is None and not self._replaces and found not in (None, self.earlier):
            raise UserError(
                f"{self._key}: {self.output_dir}: another run has finished it meanwhile; the same command finds it"
            )
        with writing(self.work_dir):
            if self.restarts:
                shutil.rmtree(self.work_dir, ignore_errors=True)
            self.work_dir.mkdir(parents=True, exist_ok=True)
        self.restarts = self._replaces
        return self.work_dir

    def reopen(self) -> None:
        """Make unfinished work of the finished output, a part of which has been lost."""
        with writing(self.work_dir):
            shutil.rmtree(self.work_dir, ignore_errors=True)
            (self.output_dir / MANIFEST).unlink()
            self.output_dir.rename(self.work_dir)
        self.manifest = None

    def replace(self) -> None:
        """Delete the finished output that this run makes anew, if it is still there: call it once there is something
        new to keep."""
        if self._replaces:
            with writing(self.output_dir):
                shutil.rmtree(self.output_dir)
        self.restarts = self._replaces = False

    def finish(self, figures: Mapping[str, Any], code_version: str) -> Manifest:
        """Write the manifest, set an earlier output aside, and put the whole in place, in that order."""
        self.replace()
        manifest = self.to_manifest(figures, code_version)
        write_manifest(self.work_dir, manifest)
        with writing(self.output_dir):
            if self.set_aside is not None and self.output_dir.is_dir():
                # There may be one, of a restart that ended before its first result.
                shutil.rmtree(self.set_aside, ignore_errors=True)
                self.output_dir.rename(self.set_aside)
            if self.output_dir.is_dir():
                self.output_dir.rmdir()
            self.work_dir.rename(self.output_dir)
        self.manifest = manifest
        return manifest


def unfinished_work(directory: Path, pattern: str) -> list[Path]:
    """The directories of unfinished work for outputs in ``directory`` whose names match ``pattern`` (glob's)."""
    found = sorted(directory.glob(f".{pattern}.{'[0-9a-f]' * _IDENTITY}.partial"))
    return [path for path in found if any(path.iterdir())]


def output_of(work_dir: Path) -> Path:
    """The output directory that unfinished work is for."""
    return work_dir.with_name(work_dir.name.removeprefix(".").rsplit(".", 2)[0])


def changed_key(ours: Mapping[str, Any], theirs: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The first of these dotted ``keys`` that has another value in ``theirs``, with both values; empty if none has."""
    for key in sorted(keys):
        if ours.get(key) != theirs.get(key):
            return f"{key} {theirs.get(key)!r} instead of {ours.get(key)!r}"
    return ""


def _renamed(ours: Any, theirs: Any, names: Container[str], key: str = "") -> Any:
    """``ours`` with the text at the dotted keys in ``names`` taken from ``theirs``, where that is text, too."""
    if isinstance(ours, dict):
        found = theirs if isinstance(theirs, Mapping) else {}
        return {
            name: _renamed(value, found.get(name), names, f"{key}.{name}" if key else str(name))
            for name, value in ours.items()
        }
    return theirs if key in names and isinstance(ours, str) and isinstance(theirs, str) else ours


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``: the last thing before a directory is put in place."""
    write_whole(directory / MANIFEST, json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n")


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a finished stage, or None where there is none."""
    try:
        return Manifest(**read_json(directory / MANIFEST))
    except (UserError, TypeError):
        return None


def input_fingerprint(name: str, path: str | Path) -> str:
    """A digest of a file, of a finished stage, or of all files of a directory; a name on the Hub stands for itself.

    Raises UserError, naming the input, for a local path that does not exist.
    """
    source = Path(path)
    if os.path.isfile(source):
        return _file_digest(source)
    if os.path.isdir(source):
        manifest = read_manifest(source)
        if manifest is not None:
            return manifest.identity
        digest = hashlib.sha256()
        for file in sorted(source.rglob("*")):
            if file.is_file():
                digest.update(f"{file.relative_to(source)} {_file_digest(file)}\n".encode())
        return digest.hexdigest()[:16]
    if source.is_absolute() or str(path).startswith("."):
        raise UserError(f"{name}: {path}: no such file or directory")
    return f"{_HUB_NAME}{path}"


def _finished(path: str) -> str:
    """When the stage at ``path`` was finished, "" if there is none: one that is made again has the fingerprint that it
    had."""
    manifest = read_manifest(Path(path))
    return "" if manifest is None else manifest.finished


def _is_same(source: Path, earlier: object) -> bool:
    """Whether an input is what lay at the path ``earlier``, given that their fingerprints are equal.

    Two runs of one stage have one fingerprint: while both outputs are there, their manifests tell them apart. Two
    large files, known by size and time alone, may have one too: what holds such files is the same at one path only.
    """
    if not isinstance(earlier, str):
        return False
    if os.path.isdir(source) and (manifest := read_manifest(source)) is not None:
        return read_manifest(Path(earlier)) in (None, manifest)
    files = source.rglob("*") if os.path.isdir(source) else [source]
    return all(file.stat().st_size <= _HASHED_BYTES for file in files if os.path.isfile(file))


def model_inputs(models: Mapping[str, str | None]) -> dict[str, str | Path]:
    """Models as a stage's inputs: a directory is read, a Hub name stands for itself; None is left out."""
    return {
        key: str(Path(name).absolute()) if Path(name).is_dir() else name
        for key, name in models.items()
        if name is not None
    }


def _file_digest(path: Path) -> str:
    stat = path.stat()
    if stat.st_size > _HASHED_BYTES:
        return f"{stat.st_size}-{stat.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
