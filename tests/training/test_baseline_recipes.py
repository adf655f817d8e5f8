"""The baselines of the embedded world have what the PASTA model has: base, prompts, optimiser, steps, rows."""

from dataclasses import replace

import pytest

from jobs.annotate import AnnotateConfig
from pasta.config import load_config
from pasta.data.dataset import SHARD_DOCUMENTS
from pasta.training.config import SftConfig
from tests.support.paths import ROOT

PASTA = load_config(ROOT / "configs" / "sft" / "atlas-pasta.yaml", SftConfig)


@pytest.mark.parametrize("name", ["atlas-apar", "atlas-layout", "atlas-sot"])
def test_a_baseline_differs_in_its_data_alone_and_in_the_steps_that_learn_as_many_tokens(name: str) -> None:
    config = load_config(ROOT / "configs" / "sft" / f"{name}.yaml", SftConfig)
    assert config.model == PASTA.model
    # Every point of Skeleton-of-Thought repeats the prompt and the skeleton: more steps learn from as many tokens.
    same_steps = {} if name != "atlas-sot" else {"max_steps": PASTA.optimisation.max_steps}
    assert replace(config.optimisation, **same_steps) == PASTA.optimisation
    assert config.workers == PASTA.workers
    # More tokens a row make up for documents that are shorter: as many tokens in as many rows.
    same = {"source", "seed", "mode", "row_length", "documents", "mixture", "echo", "talk"}
    assert replace(config.data, **{key: getattr(PASTA.data, key) for key in same}) == PASTA.data


@pytest.mark.parametrize("name", ["atlas-apar", "atlas-layout", "atlas-sot"])
def test_a_baseline_has_the_prompts_of_the_pasta_model(name: str) -> None:
    annotate = load_config(ROOT / "configs" / "annotate" / f"{name}.yaml", AnnotateConfig)
    train = load_config(ROOT / "configs" / "sft" / f"{name}.yaml", SftConfig)
    source, data = annotate.data.source, PASTA.data
    assert (source.path, source.seed, source.mixture, source.echo, source.talk) == (
        data.source,
        data.seed,
        data.mixture,
        data.echo,
        data.talk,
    )
    assert annotate.data.shard_records == SHARD_DOCUMENTS
    assert train.data.source == str(annotate.output_dir)
