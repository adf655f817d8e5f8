"""Files that users name: reading them reports a problem in one clear line; writing one is all or nothing."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pasta.errors import CutShort, UserError, first_line

#: The names of an annotate stage's files of answers.
ANNOTATED = "annotated-*.jsonl"
#: Room that is left in the length of a directory's path for the files in it.
_ROOM_CHARS = 200
#: Characters added to a directory's name while it is being written.
_BESIDE_CHARS = 30
#: A disk with less room than this is full: what failed may have been a few bytes short.
_NO_ROOM_BYTES = 64 * 1024
#: How files that gzip has made begin.
_GZIP = b"\x1f\x8b"
#: What the system says of a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def reading(path: str | os.PathLike[str], *, key: str = "", expected: str = "") -> Iterator[None]:
    """Raise UserError, naming ``path``, for what the operating system refuses to read, and for text that is not UTF-8.

    ``key`` is the configuration's key or the option that names the path; ``expected`` says what should be there.
    """
    try:
        yield
    except BrokenPipeError:  # a broken pipe is about the output, whose reader has gone
        raise
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        prefix = f"{key}: " if key else ""
        hint = f"; expected {expected}" if expected else ""
        raise UserError(f"{prefix}{shown(path)}: {_reason(error)}{hint}") from None


def read_bytes(path: Path, *, key: str = "", expected: str = "") -> bytes:
    """A whole file. Raises UserError as ``reading`` does, and for one that is compressed."""
    with reading(path, key=key, expected=expected):
        return b"".join(uncompressed([path.read_bytes()]))


def read_text(path: Path, *, key: str = "", expected: str = "") -> str:
    """A whole file of UTF-8, without a byte order mark; line ends stay as they are. Raises UserError."""
    with reading(path, key=key, expected=expected):
        return path.read_bytes().decode("utf-8-sig")


def read_lines(path: Path, *, key: str = "", expected: str = "") -> Iterator[bytes]:
    """The lines of a file with their line ends, one by one. Raises UserError, also if it is compressed."""
    with reading(path, key=key, expected=expected), path.open("rb") as file:
        yield from uncompressed(file)


def uncompressed(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file. Raises ValueError if gzip has made it."""
    for number, line in enumerate(lines):
        if not number and line.startswith(_GZIP):
            raise ValueError("it is compressed; unpack it with gunzip")
        yield line


def annotated_files(path: Path) -> list[Path]:
    """``path`` itself, or the files of annotated answers in the directory of an annotate stage: maybe none."""
    return sorted(path.glob(ANNOTATED)) if os.path.isdir(path) else [path]


def shown(path: str | os.PathLike[str]) -> str:
    """``path`` for a message: as it is, or quoted where it holds characters that cannot be printed."""
    name = os.fspath(path)
    return name if name.isprintable() else repr(name)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    if isinstance(error, UnicodeDecodeError):
        return f"cannot be read (byte {error.start + 1} is not UTF-8 text)"
    return f"cannot be read ({error})"  # the name itself: a NUL character, half of a surrogate pair


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file beside ``path``, then put it in its place; its directory is made if there is none. Text is UTF-8.

    A link stays, and the file that it leads to, which others may read, is written. A device or a pipe is written to: a
    file in its place would be its end.
    ``private``: nobody but its owner may read a new file; one that is there keeps its mode, and its owner if the system
    lets it. Raises UserError if it cannot be written, for a disk that is full as for any other reason.
    """
    if not path.name:
        raise UserError(f"{str(path)!r}: cannot be written (Is a directory)")
    with writing(path):
        data = content.encode() if isinstance(content, str) else content
        if path.exists() and not path.is_file():  # asked of the path itself: no name leads to a shell's pipe
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))
        staging = target.with_name(f".{target.name}.{os.getpid()}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.touch(mode=0o600 if private else 0o666)
            with staging.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if private and target.exists():
                _take_over_access(target, staging)
            staging.replace(target)
        finally:
            # A failure to clear up must not hide the reason: a name may be too long for unlink, too.
            with suppress(OSError):
                staging.unlink(missing_ok=True)


def _take_over_access(path: Path, staging: Path) -> None:
    found = path.stat()
    with suppress(PermissionError):  # only root gives files away
        os.chown(staging, found.st_uid, found.st_gid)
    staging.chmod(stat.S_IMODE(found.st_mode))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise UserError, naming ``path``, for what the operating system refuses in the block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{str(path)!r}: cannot be written ({error.strerror or error})") from None


@contextmanager
def full_disk_told(path: Path, key: str) -> Iterator[None]:
    """Raise CutShort, naming ``key``, for an error in the block if the disk of ``path`` is full by then; its parent is
    there. Libraries have errors of their own: safetensors' holds the system's words, torch's is "iostream error"."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not _is_full(path, error):
            raise
        raise CutShort(f"{key}: {shown(path)}: no room is left on its disk ({first_line(error)})") from None


def _is_full(path: Path, error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    # What did not fit may be gone by now, and with it a full disk's only other sign.
    if any(os.strerror(code) in str(error) for code in _FULL):
        return True
    try:
        return shutil.disk_usage(path.parent).free < _NO_ROOM_BYTES
    except OSError:
        return False


def check_directory(path: Path, key: str, made: Path | None = None) -> None:
    """Raise UserError, naming ``key``, unless ``path`` is a directory to write in, or one can be made there.

    Nothing is made. With ``made``, a path derived from ``path``, ``made`` is checked instead.
    """
    try:
        _check_can_be_made((made or path).absolute())
    except OSError as error:
        raise UserError(
            f"{key}: {shown(path)}: cannot be written ({error.strerror}); expected a directory to write in, or a place "
            "for a new one"
        ) from None


def check_beside(path: Path, key: str) -> None:
    """``check_directory`` for one that is written beside ``path`` and then renamed, or for a file."""
    if path.name in ("", ".."):
        raise UserError(f"{key}: {shown(path)}: expected a name, not a directory that is always there")
    check_directory(path, key, path.parent / f".{path.name}{'.' * _BESIDE_CHARS}")


def check_replaced(path: Path, key: str) -> None:
    """``check_beside`` for a directory whose place a new one takes: a mount point, and a link, would keep theirs."""
    check_beside(path, key)
    kind = "a mount point" if os.path.ismount(path) else "a link" if os.path.islink(path) else ""
    if kind:
        raise UserError(
            f"{key}: {shown(path)}: is {kind}, and a finished directory is renamed to this name; expected a name in "
            f"{shown(os.path.realpath(path))}, or another"
        )


def _check_can_be_made(directory: Path) -> None:
    there = directory
    while (found := _status(there)) is None:
        there = there.parent
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    longest = max(len(os.fsencode(part)) for part in directory.parts)
    if longest > os.pathconf(there, "PC_NAME_MAX") or (
        len(os.fsencode(directory)) + _ROOM_CHARS > os.pathconf(there, "PC_PATH_MAX")
    ):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _status(path: Path) -> os.stat_result | None:
    """The status of ``path``, or None if nothing is there. Raises OSError for a path that cannot be looked at, and for
    a link to nothing."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return None
    return os.stat(path)
