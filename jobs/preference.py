"""Preference training (BoNBoN, DPO or IPO) as a Ray Train job, on two CPU workers or on a cluster of GPUs:

    python -m jobs.preference --config configs/preference/atlas.yaml --set data.source=runs/stages/pairs

The same command again goes on where the last one stopped, or says that nothing is left to do. Single keys are set
with ``--set objective.alpha=0.01``; ``--restart`` forgets what was done.
"""

from pathlib import Path

import datasets

from jobs.training import begin, fit, parse_arguments
from pasta.data.pairs import PreparedPairs, pairs_file
from pasta.entrypoint import run_main
from pasta.stages import Stage
from pasta.training.preference import effective_beta, prepare, train
from pasta.training.preference_config import PreferenceConfig


def main() -> int:
    description = (__doc__ or "").split(",")[0]
    example = "configs/preference/atlas.yaml"
    config, restart, address = parse_arguments("preference", description, example, PreferenceConfig)
    return run(config, restart=restart, address=address)


def identity(config: PreferenceConfig) -> str:
    """A digest of the configuration, the pairs and the models it starts from: the same for the same run.

    Raises UserError if one of them is not there.
    """
    inputs: dict[str, str | Path] = {
        "data.source": pairs_file(config.data.source),
        "model.init_from": str(config.model.init_from),
    }
    if config.objective.reference is not None:
        inputs["objective.reference"] = config.objective.reference
    return Stage("preference", config, inputs).identity


def run(config: PreferenceConfig, *, restart: bool = False, address: str | None = None) -> int:
    """Prepare the pairs, train on Ray workers, and leave the model in ``config.output_dir``."""
    digest = identity(config)
    run_dir = begin(config, digest, restart=restart)
    if run_dir is None:
        return 0
    datasets.disable_progress_bars()
    prepared = prepare(config, config.run_dir.absolute() / "data")
    _describe(config, prepared)
    fit(train, config, identity=digest, data_dir=prepared.path, run_dir=run_dir, address=address)
    return 0


def _describe(config: PreferenceConfig, prepared: PreparedPairs) -> None:
    made = "found" if prepared.reused else "made"
    print(
        f"{config.name}: data {made}: {prepared.num_pairs:,} pairs, {prepared.num_eval_pairs:,} held out, "
        f"{prepared.num_tokens:,} tokens; left out {prepared.num_too_long} too long, {prepared.num_equal} equal"
    )
    print(f"{config.name}: {config.objective.loss} with beta {effective_beta(config.objective):.5g}")


if __name__ == "__main__":
    run_main(main)
