"""Arguments of the ``pasta`` command."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pasta import __version__
from pasta.cli.alpaca import annotations, export
from pasta.cli.check import check_file
from pasta.cli.compare import compare_evaluations
from pasta.cli.show import show_record
from pasta.entrypoint import CommandParser
from pasta.errors import UserError
from pasta.evaluation.results.compare import score_measure

_MOST_COLUMNS = 10_000
TOKENIZER_HELP = (
    "count tokens with: atlas, words, a tokenizer's directory, or auto: atlas if installed, else words"
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments`` (the command line by default), run the subcommand, return the exit code."""
    options = parser().parse_args(arguments)
    if options.command == "check":
        return check_file(options.file, options.tokenizer, options.field)
    if options.command == "show":
        return show_record(options.file, options.record, options.tokenizer, options.field, options.width)
    if options.command == "compare":
        if options.speed is not None and not options.quality_weight:
            raise UserError(
                f"--speed: {options.speed} has no effect without a score; expected --quality-weight too"
            )
        scores = [score_measure(weight, options.speed or "speedup") for weight in options.quality_weight]
        return compare_evaluations(
            options.a, options.b, options.method, options.top, scores, as_json=options.json
        )
    if options.command == "simulate":
        from pasta.cli.simulate import simulate  # it reads YAML, the others do not

        return simulate(options.config, options.overrides, options.measured)
    if options.command == "stand-in":
        from pasta.judges.stand_in import serve_stand_in  # it imports the judges, the others do not

        return serve_stand_in(options.port, options.judge_error)
    if options.what == "annotations":
        return annotations(options.file, official=options.official, as_json=options.json)
    return export(options.evaluation, options.method, options.out, options.generator)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = CommandParser(
        prog="pasta", description="Tools for answers annotated in PASTA-LANG, and for evaluations of them."
    )
    made.add_argument("--version", action="version", version=f"pasta {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_check(commands)
    _add_show(commands)
    _add_compare(commands)
    _add_alpaca(commands)
    _add_simulate(commands)
    _add_stand_in(commands)
    return made


def _add_check(commands: Any) -> None:
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


def _add_show(commands: Any) -> None:
    showing = commands.add_parser(
        "show",
        help="draw an annotated answer's threads over time",
        description="Draw the threads of one annotated answer over decoding steps. The input is a JSONL file as "
        "for check, or one answer in text form; what begins with a brace and a quote is JSONL.",
    )
    showing.add_argument(
        "file", nargs="?", type=Path, default=Path("-"), metavar="FILE", help="default: - (stdin)"
    )
    showing.add_argument(
        "--record", type=_positive, default=1, metavar="N", help="which record of a JSONL file"
    )
    showing.add_argument("--field", default="annotated", metavar="NAME", help="key of the annotated answer")
    showing.add_argument("--tokenizer", default="auto", metavar="NAME", help=TOKENIZER_HELP)
    showing.add_argument("--width", type=_width, metavar="COLUMNS", help="default: the terminal's")


def _add_compare(commands: Any) -> None:
    comparing = commands.add_parser(
        "compare",
        help="show what changed between two evaluations, and which prompts changed most",
        description="Compare two evaluations on the prompts that both have: configuration, quality, speedups, tokens, "
        "critical path and threads with 95% intervals, task families, and the prompts that moved most. A and B are "
        "directories of jobs.evaluate, or DIR:METHOD; the two may be one directory.",
    )
    comparing.add_argument("a", metavar="A", help="DIR or DIR:METHOD")
    comparing.add_argument("b", metavar="B", help="DIR or DIR:METHOD")
    comparing.add_argument(
        "--method", metavar="NAME", help="which method; not needed where there is one beside the baseline"
    )
    comparing.add_argument("--top", type=_positive, default=5, metavar="N", help="prompts in each list (5)")
    comparing.add_argument(
        "--quality-weight",
        type=_weight,
        action="append",
        default=[],
        metavar="λ",
        help="compare the score speedup + λ · quality too (theoretical speedup); may be given several times",
    )
    comparing.add_argument(
        "--speed",
        choices=("speedup", "written", "parallelism"),
        help="what those scores count as speed, as in configs/score (speedup)",
    )
    comparing.add_argument("--json", action="store_true", help="print JSON, with all figures and prompts")


def _add_alpaca(commands: Any) -> None:
    alpaca = commands.add_parser(
        "alpaca",
        help="win rates of AlpacaEval's annotations; answers for its own tool",
        description="Work with AlpacaEval's files.",
    )
    whats = alpaca.add_subparsers(dest="what", required=True, metavar="WHAT")
    rating = whats.add_parser(
        "annotations",
        help="win rates of a file of annotations",
        description="Win rates of a file of annotations (all 805 rows, each once): raw, and length-controlled without "
        "AlpacaEval's difficulty term. --official asks the package alpaca_eval for its own figure.",
    )
    rating.add_argument("file", type=Path, metavar="FILE", help="annotations.json")
    rating.add_argument(
        "--official", action="store_true", help="with alpaca_eval's own length-controlled win rate"
    )
    rating.add_argument("--json", action="store_true", help="print JSON")
    exporting = whats.add_parser(
        "export",
        help="write a method's answers of an evaluation as AlpacaEval's outputs",
        description="Write a method's answers as AlpacaEval's outputs, for its own tool: "
        "alpaca_eval --model_outputs FILE --reference_outputs FILE.",
    )
    exporting.add_argument("evaluation", type=Path, metavar="DIR", help="directory of jobs.evaluate")
    exporting.add_argument("method", metavar="METHOD", help="whose answers")
    exporting.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the JSON file to write; - is stdout"
    )
    exporting.add_argument("--generator", metavar="NAME", help="its name in that file (the method's name)")


def _add_simulate(commands: Any) -> None:
    simulating = commands.add_parser(
        "simulate",
        help="how long answers take under load, and how many replicas the load needs",
        description="Simulate a service under load, engine step by engine step: latencies, throughput, GPU hours, "
        "where parallel decoding stops paying, how many replicas reach a goal. Writes a report with pictures.",
    )
    simulating.add_config("configs/simulate/atlas.yaml")
    simulating.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="compare with a measured load: the benchmark's runs/benchmark/serve.latency.jsonl, or JSONL of ttft_s and "
        "total_s, with arrival_s if known, and with prompt and annotated if it is to be the trace; exits with 1 if a "
        "figure is off by more than 15%%",
    )


def _add_stand_in(commands: Any) -> None:
    standing = commands.add_parser(
        "stand-in",
        help="serve a stand-in for a teacher and for judges, which knows the atlas alone",
        description="Serve a stand-in for the large models that jobs ask, to try them without one: an "
        "OpenAI-compatible endpoint that annotates the atlas' answers by looks, with errors, says which parts need "
        "each other, and prefers the answer with more right statements.",
    )
    standing.add_argument("--port", type=_port, default=8089, help="on 127.0.0.1 (8089)")
    standing.add_argument(
        "--judge-error",
        type=_probability,
        default=0.1,
        metavar="P",
        help="probability that a verdict on independence is wrong (0.1)",
    )


def _number(read: Callable[[str], Any], least: float, most: float, problem: str) -> Callable[[str], Any]:
    """The type of an option that takes numbers from ``least`` to ``most``; ``problem`` is said of any other text."""

    def number(text: str) -> Any:
        try:
            found = read(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{text!r}{problem}")
        return found

    return number


def _digits(text: str) -> int:
    """A number of decimal digits. Raises ValueError for other text, and for more digits than Python reads."""
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _width(text: str) -> Any:
    _positive(text)
    return _number(_digits, 1, _MOST_COLUMNS, f", expected at most {_MOST_COLUMNS:,}")(text)


_positive = _number(_digits, 1, math.inf, " is not a positive integer")
_weight = _number(float, 0, sys.float_info.max, " is not a weight λ of 0 or more (for inf, read quality)")
_probability = _number(float, 0, 1, ", expected a probability from 0 to 1")
_port = _number(_digits, 0, 65535, ", expected a port from 0 to 65535")
