"""Measure the platform: the main figures of decoding in BENCHMARKS.md (all), or some of them.

    python -m jobs.benchmark all
    python -m jobs.benchmark replay --model-config configs/models/replay-llama-7b.json --device cuda
    python -m jobs.benchmark serve --help
    python -m jobs.benchmark front --help
    python -m jobs.benchmark peers --help
    python -m jobs.benchmark people --help

Needs torch and transformers, nothing else (people: pydantic; serve and front: what serving needs). An interrupted run
goes on where it stopped when it is started again with the same options; front and people begin anew.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from jobs.arguments import (
    MODELS,
    benchmark_command,
    benchmark_file,
    benchmark_parser,
    check_out,
    fields_of,
    numbers,
    quiet_transformers,
    run_benchmark,
)
from pasta.benchmark.machine import num_cores
from pasta.benchmark.settings import COMMANDS, SIZES, Settings, check_read
from pasta.engine.section import FORMATS_HELP
from pasta.entrypoint import run_main
from pasta.errors import UserError
from serve.ray_start import ROOT

_WHAT = (
    "all: everything; accuracy: statements, structure, well-formedness; speed: these and speedups; "
    "step: cost of lanes; generate: against transformers; sampling: candidates at once; "
    "replay: a large random model; calibrate: costs of a step for pasta simulate; "
    "formats: what number formats change; prefix: conversations and candidates; help: forced tokens, drafts; "
    "serve: the service under load; front: the service without its engines; "
    "peers: against transformers and llama.cpp; "
    "people: right answers to what people type"
)
MODEL_CONFIG = ROOT / "configs" / "models" / "replay-llama-400m.json"
#: The parts with modules and options of their own.
PARTS = ("serve", "front", "peers", "people")


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] and given[0] in PARTS:
        return int(_module(given[0]).main(given[1:]))
    options = parser().parse_args(given)
    settings = settings_of(options)
    check_out(settings.out)
    from pasta.benchmark.benchmark import Benchmark

    quiet_transformers()
    command = benchmark_command(*given)
    stages = COMMANDS[options.what]
    return run_benchmark(lambda: Benchmark(settings, command).run(stages), settings.out, fresh=settings.fresh)


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that options stand for. Raises UserError, also for an option that the part does not read, and for a
    part with a parser of its own, which is chosen by the first argument."""
    if options.what not in COMMANDS:
        raise UserError(
            f"{options.what}: expected before all options: python -m jobs.benchmark {options.what} …"
        )
    default = 300 if options.what == "formats" else 200
    chosen = fields_of(Settings, options) | {
        "out": options.out or default_out(options.what, options),
        "prompts": default if options.prompts is None else options.prompts,
        "sizes": SIZES if options.only is None else (options.only,),
    }
    settings = Settings(**chosen)
    defaults = vars(parser().parse_args([options.what]))
    check_read(options.what, [name for name, value in vars(options).items() if value != defaults[name]])
    return settings


def parser_of(part: str) -> argparse.ArgumentParser:
    """The command line of a part with options of its own."""
    made: argparse.ArgumentParser = _module(part).parser()
    return made


def default_out(part: str, options: argparse.Namespace) -> Path:
    """The file that a part writes without ``--out``."""
    name = part
    if part == "people":
        name = _module(part).people_name(options)
    elif part == "serve":
        name = _module(part).serve_name(options)
    return benchmark_file(name)


def _module(part: str) -> Any:
    return importlib.import_module(f"jobs.benchmark_{part}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = benchmark_parser("", __doc__)
    add = made.add_argument
    # PARTS are among them for the help.
    add(
        "what",
        nargs="?",
        choices=sorted([*COMMANDS, *PARTS]),
        default="all",
        help=_WHAT,
    )
    add("--models", type=Path, default=MODELS, help="directory with twin/ and pasta/ (the shipped ones)")
    add(
        "--widened",
        type=Path,
        help="widen these to a transformers configuration: the same answers at a larger model's cost",
    )
    add(
        "--model-config",
        type=Path,
        default=MODEL_CONFIG,
        help="the large model: a transformers configuration (400M)",
    )
    add(
        "--documents",
        type=Path,
        help='replay these: JSONL of {"prompt", "annotated"}, or a directory of jobs.annotate (the PASTA model\'s '
        "answers)",
    )
    add("--tokenizer", help="count their tokens with: words, atlas, a directory or a Hub name (words)")
    add(
        "--longest",
        type=int,
        help="leave out documents of so many tokens or more, prompt and tags included (the context)",
    )
    add("--prompts", type=int, help="held-out prompts (200; formats: 300)")
    add("--max-tokens", type=int, default=1024, help="longest answer (1024)")
    add("--replay-prompts", type=int, default=24, help="documents to replay (24)")
    add("--replay-seed", type=int, default=0, help="the seed with which they are drawn from --documents (0)")
    add("--dtype", default="auto", help=f"{FORMATS_HELP} (auto)")
    add("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    add("--threads", type=int, default=1, help="threads for the shipped models on a CPU (1)")
    add("--large-threads", type=int, default=num_cores(), help="threads for the large one (all cores)")
    add("--repeats", type=int, default=1, help="timed runs of each prompt; their median counts (1)")
    add("--rounds", type=int, default=10, help="repetitions of step, calibrate, generate and prefix (10)")
    add(
        "--lanes",
        type=numbers("1,2,4,8"),
        default=(1, 2, 4, 8),
        help="lanes for step and calibrate (1,2,4,8)",
    )
    add(
        "--requests",
        type=numbers("1,2,4,8"),
        default=(1, 2, 4, 8),
        help="requests at once for calibrate (1,2,4,8)",
    )
    add(
        "--cache-tokens",
        type=int,
        default=256,
        help="cache length for step, for calibrate also four times it (256)",
    )
    add("--only", choices=SIZES, help="step, calibrate, generate: on the shipped or the large model alone")
    add("--out", type=Path, help="the JSON file to write (runs/benchmark/NAME.json); records go beside it")
    add(
        "--fastest",
        action="store_true",
        help="calibrate by the fastest steps, where others use the machine too",
    )
    add("--fresh", action="store_true", help="measure again what an earlier run has measured")
    return made


if __name__ == "__main__":
    run_main(main)
