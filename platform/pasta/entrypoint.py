"""Runs a command: its options, exit codes, and one line instead of a stack trace for a user's mistake."""

import errno
import io
import os
import sys
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pasta.errors import UserError, one_line

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
# Errors of the environment: a file, the disk, or permissions.
_REFUSALS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class CommandParser(ArgumentParser):
    """An ArgumentParser, for itself and its subcommands, that raises UserError for an option given twice, of which
    argparse takes the last, and for a blank text or path. ``action="append"`` is for options that may be repeated. A
    description of several lines keeps them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if "\n" in (options.get("description") or ""):
            options.setdefault("formatter_class", RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)
        self.given: set[Action] = set()
        self.register("action", None, _StoreOnce)
        # A blank path stays text, which the action refuses: Path("") is the current folder.
        self.register("type", Path, lambda text: Path(text) if text.strip() else text)

    def add_config(self, example: str) -> None:
        """Add ``--config``, which takes a file such as ``example``, and ``--set`` (``overrides``) for its keys."""
        self.add_argument("--config", type=Path, required=True, help=f"a YAML file such as {example}")
        self.add_argument(
            "--set",
            dest="overrides",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="override one key of it; may be repeated",
        )

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Parse, as argparse does."""
        self.given.clear()
        return super().parse_known_args(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        """Print the usage and ``message`` on one line that is not too long, and exit with code 2."""
        super().error(one_line(message))


class _StoreOnce(Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if option is not None and self in parser.given:
            # The values may be secrets.
            raise UserError(f"{option}: given twice; expected once")
        if isinstance(values, str) and not values.strip():
            raise UserError(
                f"{option or self.metavar or self.dest}: {values!r}, expected text that is not blank"
            )
        parser.given.add(self)
        setattr(namespace, self.dest, values)


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's main function and exit the process with its code.

    A UserError, what the operating system refuses of a file, a home, current or temporary directory that is needed and
    missing become one line ``error: …`` on stderr and exit code 2, Ctrl-C one line and 130; a reader that went away
    (``pasta show | head``) ends the command quietly. Anything else is a bug and keeps its stack trace.
    """
    # Closed by the shell (`>&-`) a stream is None: it has no encoding, and print() takes the other one.
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name may hold bytes, and a text characters, that the terminal's encoding has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main() or 0
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        code = EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno == errno.ENOENT and _directory_is_gone():
            print("error: the current directory is gone; expected one that is there: cd …", file=sys.stderr)
            sys.exit(EXIT_USER_ERROR)
        if (said := error.strerror or "").startswith("No usable temporary directory"):
            print(
                f"error: TMPDIR: {one_line(said)}; expected one to write in: export TMPDIR=…", file=sys.stderr
            )
            sys.exit(EXIT_USER_ERROR)
        if error.errno not in _REFUSALS or (error.filename is None and error.errno != errno.ENOSPC):
            raise
        named = f"{error.filename!r}: " if error.filename is not None else ""
        print(f"error: {one_line(f'{named}{error.strerror}')}{_of_home(error)}", file=sys.stderr)
        code = EXIT_USER_ERROR
    except RuntimeError as error:
        # Of pathlib, for whoever asks for the home: this project, W&B, Ray.
        if str(error) != "Could not determine home directory.":
            raise
        print(
            f"error: HOME: is not set, and user {os.getuid()} has no home; expected a directory: export HOME=…",
            file=sys.stderr,
        )
        code = EXIT_USER_ERROR
    sys.exit(code)


def _directory_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _of_home(error: OSError) -> str:
    """What to do if the home cannot be made, or refused a hidden folder that no user has named, such as Ray's for its
    token."""
    home = os.environ.get("HOME", "").rstrip("/")
    is_of_home = f"{error.filename}/.".startswith(f"{home}/.")
    if not (is_of_home and error.errno in _NOT_WRITABLE):
        return ""
    return "; expected a home that can be written: export HOME=…"


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", errors="backslashreplace")
