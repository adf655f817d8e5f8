"""Tokens a second of training under thread masks, against TRL's own trainers on plain text of the same lengths:

    python -m jobs.benchmark_training sft --config configs/sft/atlas-pasta.yaml
    python -m jobs.benchmark_training preference --config configs/preference/atlas.yaml

Any recipe will do; without Ray and DeepSpeed, on one device.
"""

from collections.abc import Sequence
from pathlib import Path

from jobs.arguments import benchmark_file, check_out
from pasta.benchmark.machine import describe_machine
from pasta.benchmark.metrics import Metric, metrics_table
from pasta.benchmark.options import check_interval, check_least
from pasta.config import load_config
from pasta.engine.section import check_device
from pasta.entrypoint import CommandParser, run_main
from pasta.stages.records import write_json
from pasta.statistics import bootstrap
from pasta.training.config import SftConfig
from pasta.training.preference_config import PreferenceConfig

KINDS = {"sft": SftConfig, "preference": PreferenceConfig}
TARGET = 0.95


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m jobs.benchmark_training", description=__doc__)
    add = parser.add_argument
    add("kind", choices=list(KINDS), help="what the recipe trains by")
    parser.add_config("configs/sft/atlas-pasta.yaml")
    add("--rounds", type=int, default=8, help="times that each way trains, in turn (8)")
    add("--steps", type=int, default=10, help="timed steps of each time (10)")
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--out", type=Path, help="the JSON file to write (runs/benchmark/KIND.json)")
    options = parser.parse_args(arguments)
    out = options.out or benchmark_file(options.kind)
    check_out(out)
    check_interval(options, "rounds")
    check_least(options, 1, "steps", "threads")
    check_device(options.device, "--device")
    config: SftConfig | PreferenceConfig = load_config(options.config, KINDS[options.kind], options.overrides)
    import torch

    from pasta.engine.supported import resolve_device
    from pasta.training.stock import OURS, STOCK, beside_stock, tokens_per_second

    torch.set_num_threads(options.threads)
    device = resolve_device(options.device, "--device")
    rounds = beside_stock(
        config,
        config.run_dir / "stock",
        use_gpu=device.type == "cuda",
        rounds=options.rounds,
        steps=options.steps,
        progress=lambda line: print(line, flush=True),
    )
    rates = {way: tokens_per_second([entry[way] for entry in rounds]) for way in (OURS, *STOCK)}
    names = {way: f"TRL on plain text, {way}" for way in STOCK} | {OURS: "under thread masks"}
    metrics = [Metric(f"{options.kind}.{way}", f"tokens a second, {names[way]}", rates[way]) for way in rates]
    fastest = max(STOCK, key=rates.__getitem__)
    for way in STOCK:
        ratios = [tokens_per_second([entry[OURS]]) / tokens_per_second([entry[way]]) for entry in rounds]
        note = f"{len(rounds)} rounds of {options.steps} steps" + (
            ", TRL's faster way" if way == fastest else ""
        )
        target = TARGET if way == fastest else None
        label = f"thread masks ÷ {names[way]}"
        metrics.append(
            Metric.of(f"{options.kind}.ratio.{way}", label, bootstrap(ratios), target=target, note=note)
        )
    print(metrics_table(metrics))
    write_json(
        out,
        {
            "machine": describe_machine(device),
            "config": str(options.config),
            "figures": [metric.to_dict() for metric in metrics],
        },
    )
    print(f"\nwritten to {out}")
    return 0


if __name__ == "__main__":
    run_main(main)
