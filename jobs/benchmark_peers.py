"""Measure the engine side by side with what a user would pick instead, on the same weights, in turn:

    python -m jobs.benchmark peers
    python -m jobs.benchmark peers --shapes shipped --parts check,decode
    python -m jobs.benchmark peers --shapes configs/models/replay-llama-400m.json --documents runs/data/alpaca-syntactic

Peers are transformers' generate, llama.cpp and, in the parts decode and prefill, OpenVINO GenAI and ONNX Runtime GenAI;
the command writes their files itself. All but the first are an extra that nothing else needs:
CMAKE_ARGS=-DGGML_NATIVE=ON pip install -e '.[peers]' installs them and builds llama.cpp; what is not installed is left
out. All run on the CPU. The same command resumes an interrupted run.
"""

import argparse
import os
from pathlib import Path

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
from pasta.benchmark.peers.settings import FORMATS, PARTS, SHIPPED, PeerSettings
from serve.ray_start import ROOT

_CONFIGS = ROOT / "configs" / "models"
#: Shapes that are named without their file.
SHAPES = {name: _CONFIGS / f"replay-llama-{name}.json" for name in ("30m", "400m", "1.1b")}
SHAPES["wide-400m"] = _CONFIGS / "wide-400m.json"


def main(arguments: list[str]) -> int:
    """Run the command; ``arguments`` are those behind ``peers``."""
    options = parser().parse_args(arguments)
    out = options.out or benchmark_file("peers")
    given = fields_of(PeerSettings, options) | {
        "shapes": tuple(str(SHAPES.get(shape, shape)) for shape in options.shapes),
        "out": out,
        "weights": options.weights or out.parent / "peers",
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
    }
    settings = PeerSettings(**given)
    check_out(out)
    from pasta.benchmark.peers.bench import PeerBenchmark

    quiet_transformers()
    command = benchmark_command("peers", *arguments)
    return run_benchmark(lambda: PeerBenchmark(settings, command).run(), out, fresh=settings.fresh)


def parser() -> argparse.ArgumentParser:
    """The command line behind ``peers``."""
    made = benchmark_parser("peers", __doc__)
    add = made.add_argument
    shapes = ",".join([SHIPPED, *SHAPES])
    add(
        "--shapes",
        type=names,
        default=names(shapes),
        help=f"some of {shapes}, or files of a transformers configuration: the shipped models, widened to it if they "
        "can be (the same answers at a larger model's cost), else random weights (all five)",
    )
    add("--parts", type=names, default=PARTS, help=f"some of {','.join(PARTS)} (all)")
    add(
        "--formats",
        type=names,
        default=tuple(FORMATS),
        help=f"some of {','.join(FORMATS)} (all that run here)",
    )
    add("--threads", type=int, default=num_cores(), help="threads that every decoder may use (all cores)")
    add("--rounds", type=int, default=6, help="rounds; in each, all are measured in turn (6)")
    add("--tokens", type=int, default=64, help="tokens that each decodes in a round (64)")
    add("--prompt-tokens", type=int, default=128, help="tokens of its prompt (128)")
    prompts = "64,256,1024,4096"
    add(
        "--prefills",
        type=numbers(prompts),
        default=numbers(prompts)(prompts),
        help=f"tokens of prompts that are prefilled ({prompts})",
    )
    points = "1,2,4,8,16,32"
    add("--lanes", type=numbers(points), default=numbers(points)(points), help=f"lanes ({points})")
    add("--requests", type=numbers(points), default=numbers(points)(points), help=f"requests ({points})")
    lengths = "256,512,1024,2048,4096,8192"
    add("--contexts", type=numbers(lengths), default=numbers(lengths)(lengths), help=f"contexts ({lengths})")
    add(
        "--compiled",
        action="store_true",
        help="also generate with a static cache, compiled on the CPU (minutes)",
    )
    add("--answer-prompts", type=int, default=24, help="held-out prompts that are answered (24)")
    add("--answer-tokens", type=int, default=1024, help="longest answer (1024)")
    add(
        "--draft-acceptance",
        type=float,
        default=0.8,
        help="answers: llama.cpp also with a draft model, each of whose tokens is right with this probability if those "
        "before it are; 0: without (0.8, as our draft heads)",
    )
    add(
        "--each-help",
        action="store_true",
        help="answers: ours also with each help alone (multi-step, jump-forward, lookup, drafts)",
    )
    add(
        "--documents",
        type=Path,
        help='replay these: JSONL of {"prompt", "annotated"}, or a directory of jobs.annotate',
    )
    add("--replay-prompts", type=int, default=12, help="documents to replay (12)")
    add("--replay-seed", type=int, default=0, help="the seed with which they are drawn from --documents (0)")
    add("--longest", type=int, default=1024, help="leave out documents of so many tokens or more (1024)")
    add("--models", type=Path, default=MODELS, help="directory with twin/ and pasta/ (the shipped ones)")
    add("--weights", type=Path, help="directory for random models and GGUF files (peers/ beside --out)")
    add("--out", type=Path, help="the JSON file to write (runs/benchmark/peers.json); records go beside it")
    add("--fresh", action="store_true", help="measure again what an earlier run has measured")
    return made


def names(text: str) -> tuple[str, ...]:
    """The type of an option that takes names, each once, in the order given."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
