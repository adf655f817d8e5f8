"""Arguments of the ``pasta`` command."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pasta import __version__
from pasta.cli.check import check
from pasta.cli.show import show
from pasta.entrypoint import run_main

TOKENIZER_HELP = (
    "count tokens with: atlas, words, a tokenizer's directory, or auto: atlas if installed, else words"
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. Exit codes: 0 fine, 1 invalid records, 2 misuse, 130 interrupted."""
    run_main(lambda: run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments`` (the command line by default), run the subcommand, return the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "check":
        return check(options.file, options.tokenizer, options.field)
    return show(options.file, options.record, options.tokenizer, options.field, options.width)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pasta", description="Tools for answers annotated in PASTA-LANG.")
    parser.add_argument("--version", action="version", version=f"pasta {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    checking = commands.add_parser(
        "check",
        help="validate a JSONL file of annotated answers and print statistics",
        description="Validate a JSONL file of annotated answers: one object a line with a prompt (or messages), "
        "the annotated answer in text form and, if given, the plain answer it must strip to. Exits with 1 if a "
        "record is invalid.",
    )
    checking.add_argument("file", type=Path, metavar="FILE", help="JSONL file; - reads standard input")
    checking.add_argument("--field", default="annotated", metavar="NAME", help="key of the annotated answer")
    checking.add_argument("--tokenizer", default="auto", metavar="NAME", help=TOKENIZER_HELP)

    showing = commands.add_parser(
        "show",
        help="draw an annotated answer's threads over time",
        description="Draw the threads of one annotated answer over decoding steps. The input is a JSONL file as "
        "for check, or one answer in text form.",
    )
    showing.add_argument(
        "file", nargs="?", type=Path, default=Path("-"), metavar="FILE", help="default: - (stdin)"
    )
    showing.add_argument(
        "--record", type=_positive, default=1, metavar="N", help="which record of a JSONL file"
    )
    showing.add_argument("--field", default="annotated", metavar="NAME", help="key of the annotated answer")
    showing.add_argument("--tokenizer", default="auto", metavar="NAME", help=TOKENIZER_HELP)
    showing.add_argument("--width", type=_positive, metavar="COLUMNS", help="default: the terminal's")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)
