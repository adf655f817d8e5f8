"""Tokens a second of supervised finetuning under thread masks, against plain causal training of the same rows:

    python -m jobs.benchmark_sft --config configs/sft/atlas-pasta.yaml

Any recipe will do; without Ray and DeepSpeed, on one device.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jobs.arguments import check_out
from pasta.benchmark.machine import describe_machine
from pasta.benchmark.metrics import Metric, metrics_table
from pasta.benchmark.options import check_least
from pasta.config import load_config
from pasta.entrypoint import run_main
from pasta.stages.records import write_json
from pasta.statistics import bootstrap
from pasta.training.config import SftConfig


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.benchmark_sft", description=__doc__)
    add = parser.add_argument
    add("--config", type=Path, required=True, help="a YAML file such as configs/sft/atlas-pasta.yaml")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    add("--rounds", type=int, default=40, help="timed steps of each way to train (40)")
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--out", type=Path, default=Path("runs/benchmark/sft.json"), help="the JSON file to write")
    options = parser.parse_args(arguments)
    check_out(options.out)
    check_least(options, 1, "rounds", "threads")
    config = load_config(options.config, SftConfig, options.overrides)
    import torch

    from pasta.engine.supported import resolve_device
    from pasta.training.mask_cost import PLAIN, THREADS, measure_mask_cost, tokens_per_second

    torch.set_num_threads(options.threads)
    device = resolve_device(options.device)
    rounds = measure_mask_cost(config, config.run_dir / "data", device, options.rounds)
    rates = {way: tokens_per_second([entry[way] for entry in rounds]) for way in (THREADS, *PLAIN)}
    names = {way: f"plain causal, {way}" for way in PLAIN} | {THREADS: "under thread masks"}
    metrics = [Metric(f"sft.{way}", f"training, tokens a second, {names[way]}", rates[way]) for way in rates]
    for way in PLAIN:
        ratios = bootstrap([entry[way].seconds / entry[THREADS].seconds for entry in rounds])
        fastest = rates[way] == max(rates[each] for each in PLAIN)
        metrics.append(
            Metric.of(
                f"sft.ratio.{way}",
                f"thread masks ÷ {names[way]}, tokens a second",
                ratios,
                target=0.9 if fastest else None,
                note=f"{len(rounds)} rounds" + (", the faster of the plain ones" if fastest else ""),
            )
        )
    print(metrics_table(metrics))
    write_json(
        options.out,
        {
            "machine": describe_machine(device),
            "config": str(options.config),
            "figures": [metric.to_dict() for metric in metrics],
        },
    )
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    run_main(main)
