"""What the command lines of jobs share: a configuration file, single keys, a cluster; and those of the benchmarks."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pasta
from pasta.entrypoint import EXIT_INTERRUPTED, CommandParser
from pasta.errors import UserError
from pasta.files import check_beside
from pasta.signals import Terminated, ended_by_sigterm

if TYPE_CHECKING:
    from pasta.benchmark.metrics import Report

T = TypeVar("T")
#: The shipped models.
MODELS = Path(pasta.__file__).parent / "data" / "atlas" / "models"


def job_parser(
    job: str, description: str | None, example: str, restart: str | None = None
) -> argparse.ArgumentParser:
    """``--config``, ``--set`` (``overrides``) and ``--address``, for ``python -m jobs.JOB``.

    The first line of ``description`` is shown, and ``example`` as a file to try. ``restart`` explains ``--restart``;
    without it there is no such flag.
    """
    first = (description or "").split("\n")[0].rstrip(":")
    parser = CommandParser(prog=f"python -m jobs.{job}", description=first, allow_abbrev=False)
    parser.add_config(example)
    parser.add_argument(
        "--address", help="address of a running Ray cluster, or RAY_ADDRESS; by default a local one"
    )
    if restart is not None:
        parser.add_argument("--restart", action="store_true", help=restart)
    # A job whose options can contradict one another sets its own; jobs.submit asks it too.
    parser.set_defaults(check=lambda options: None)
    return parser


def parse_arguments(
    parser: argparse.ArgumentParser, cls: type[T], arguments: Sequence[str] | None = None
) -> tuple[T, argparse.Namespace]:
    """The configuration that the command line names, and all its options. Raises UserError, also for the address of a
    cluster that cannot be reached: before any work is done."""
    from jobs.cluster import check_address
    from pasta.config import load_config  # the benchmarks need no pydantic

    options = parser.parse_args(arguments)
    options.check(options)
    config = load_config(options.config, cls, options.overrides)
    check_address(options.address)
    return config, options


def benchmark_parser(
    part: str, description: str | None, *, allow_abbrev: bool = False
) -> argparse.ArgumentParser:
    """An empty parser for ``python -m jobs.benchmark PART`` (``""``: without a part)."""
    return CommandParser(
        prog=f"python -m jobs.benchmark {part}".rstrip(),
        description=description,
        allow_abbrev=allow_abbrev,
    )


def benchmark_file(name: str) -> Path:
    """The file that a benchmark writes without ``--out``."""
    return Path("runs") / "benchmark" / f"{name}.json"


def benchmark_command(*arguments: str) -> str:
    """The command line of a benchmark, for its results."""
    return shlex.join(["python", "-m", "jobs.benchmark", *arguments])


def quiet_transformers() -> None:
    """Keep transformers' warnings and progress bars off the terminal."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def run_benchmark(run: "Callable[[], Report]", out: Path, *, fresh: bool) -> int:
    """Run a benchmark that writes to ``out``, and print its tables; returns the exit code.

    After Ctrl-C, or SIGTERM, it says where the same command resumes; a ``fresh`` one would measure all again. After
    SIGTERM it then raises Terminated.
    """
    try:
        with ended_by_sigterm():
            report = run()
    except (KeyboardInterrupt, Terminated) as end:
        without = " without --fresh" if fresh else ""
        older = ", for parts that had not begun from older ones, if there are any" if fresh else ""
        print(
            f"interrupted: the same command{without} goes on from the records in {out.parent}/{older}",
            file=sys.stderr,
        )
        if isinstance(end, Terminated):
            raise
        return EXIT_INTERRUPTED
    print(report.markdown())
    print(f"\nwritten to {out}, records beside it")
    return 0


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
