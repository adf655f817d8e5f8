"""Count the answers that are right when people type in their own words:

    python -m jobs.benchmark people --split dev
    python -m jobs.benchmark people --split test --models runs/models

The prompts were written from the atlas' facts alone, each with what a right answer contains. To tune a model, its data
or its decoding, look at dev only. Every wrong answer is listed, with what is wrong with it.
"""

import argparse
from pathlib import Path

from jobs.arguments import (
    MODELS,
    benchmark_command,
    benchmark_file,
    benchmark_parser,
    check_out,
    quiet_transformers,
)
from pasta.benchmark.measurement import check_models
from pasta.benchmark.options import check_answers, check_least
from pasta.engine.section import FORMATS_HELP, check_device, check_format, check_here
from pasta.evaluation.people.prompts import SPLITS, read_conversations, split_file
from pasta.sizes import EngineSettings
from pasta.stages.records import write_json


def main(arguments: list[str]) -> int:
    """Run the command; ``arguments`` are those behind ``people``."""
    options = parser().parse_args(arguments)
    check_least(options, 1, "threads", "max_tokens")
    check_answers(options, "max_tokens")
    check_format(options.dtype, "--dtype")
    check_device(options.device, "--device")
    file = options.prompts or split_file(options.split)
    conversations = read_conversations(file)
    out = options.out or benchmark_file(people_name(options))
    check_out(out)
    check_models(options.models)
    check_here(EngineSettings(), options.dtype, options.device, key="--", model_key="--")

    import torch

    from pasta.benchmark.machine import describe_machine, model_fingerprint
    from pasta.engine.section import EngineSection
    from pasta.evaluation.config import MethodSection
    from pasta.evaluation.methods.make import make_methods, number_formats
    from pasta.evaluation.people.measure import report, shares, talks, to_record
    from pasta.interpreter import Limits

    quiet_transformers()
    torch.set_num_threads(options.threads)
    sections = {
        "twin": MethodSection("sequential", str(options.models / "twin")),
        "pasta": MethodSection("pasta", str(options.models / "pasta")),
    }
    engine = EngineSection(dtype=options.dtype, device=options.device)
    methods = make_methods(sections, Limits(max_tokens=options.max_tokens), engine, {})
    held = list(talks(methods, conversations))
    record = {
        "command": benchmark_command("people", *arguments),
        "prompts": file.name,
        "models": {name: model_fingerprint(options.models / name) for name in sections},
        "machine": describe_machine(),
        "formats": number_formats(methods),
        "shares": shares(held),
        "conversations": [to_record(each) for each in held],
    }
    write_json(out, record)
    print(report(held, wrong=not options.summary))
    print(f"\nwritten to {out}")
    return 0


def people_name(options: argparse.Namespace) -> str:
    """The name of the file to write without ``--out``."""
    return f"people-{(options.prompts or split_file(options.split)).stem}"


def parser() -> argparse.ArgumentParser:
    """The command line behind ``people``."""
    made = benchmark_parser("people", __doc__)
    add = made.add_argument
    which = made.add_mutually_exclusive_group()
    which.add_argument("--split", choices=SPLITS, default="dev", help="which 50 questions (dev)")
    which.add_argument(
        "--prompts", type=Path, help="conversations of your own instead: JSONL of the same form"
    )
    add("--models", type=Path, default=MODELS, help="directory with twin/ and pasta/ (the shipped ones)")
    add("--max-tokens", type=int, default=512, help="longest answer (512)")
    add(
        "--dtype",
        default="float32",
        help=f"{FORMATS_HELP} (float32: the same everywhere)",
    )
    add("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    add("--threads", type=int, default=1, help="threads on a CPU (1)")
    add("--summary", action="store_true", help="print the table without the wrong answers")
    add("--out", type=Path, help="the JSON file to write (runs/benchmark/people-NAME.json)")
    return made
