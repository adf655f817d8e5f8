"""The command line that jobs share: a configuration file, single keys set otherwise, and a cluster."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pasta.errors import UserError
from pasta.files import check_beside


def job_parser(
    job: str, description: str | None, example: str, restart: str | None = None
) -> argparse.ArgumentParser:
    """``--config``, ``--set`` (``overrides``) and ``--address``, for ``python -m jobs.JOB``.

    The first line of ``description`` is shown, and ``example`` as a file to try. ``restart`` explains ``--restart``;
    without it there is no such flag.
    """
    first = (description or "").split("\n")[0].rstrip(":")
    parser = argparse.ArgumentParser(prog=f"python -m jobs.{job}", description=first, allow_abbrev=False)
    add = parser.add_argument
    add("--config", type=Path, required=True, help=f"a YAML file such as {example}")
    add(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of it otherwise; may be repeated",
    )
    add(
        "--address",
        default=None,
        help="address of a running Ray cluster, or RAY_ADDRESS; by default a local one",
    )
    if restart is not None:
        add("--restart", action="store_true", help=restart)
    return parser


def check_out(out: Path) -> None:
    """Raise UserError if ``--out`` is no file that can be written: before the measurements, not after."""
    if out.is_dir():
        raise UserError(f"--out: {out}: is a directory; expected a file")
    check_beside(out, "--out")


def fields_of(section: type, options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a dataclass that ``options`` set, by name; options that are not given are left out."""
    names = {field.name for field in dataclasses.fields(section)}
    return {name: value for name, value in vars(options).items() if name in names and value is not None}


def numbers(example: str) -> Callable[[str], tuple[int, ...]]:
    """The type of an option that takes integers such as ``example``: sorted, each once."""

    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple(sorted({int(number) for number in text.split(",")}))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}, expected numbers like {example}") from None

    return read
