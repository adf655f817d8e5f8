"""Supervised training on two ranks under every DeepSpeed file: the steps of one process without DeepSpeed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pasta.config import parse_config
from pasta.training.config import SftConfig
from pasta.training.run import RunContext
from pasta.training.sft import prepare, train
from tests.support.paths import ROOT
from tests.training.ranks import no_report, run_ranks
from tests.training.runs import sft_dict
from tests.training.test_model import saved_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _run(directory: Path, values: dict[str, Any], count: int) -> list[dict[str, float]]:
    """What the trainer logged at each of two steps."""
    config = parse_config(values, SftConfig, "tiny.yaml")
    prepared = prepare(config, directory / "data")
    work = directory / f"work-{count}"
    context = RunContext(prepared.path, work, False, no_report)
    run_ranks(train, directory / f"ranks-{count}", config, context, count=count)
    state = json.loads((work / "checkpoints/checkpoint-2/trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


def _values(directory: Path, start: Path, **recipe: Any) -> dict[str, Any]:
    values = sft_dict(directory, max_steps=2, **recipe)
    values["model"] = {"init_from": str(start), "attention": "eager", "save_dtype": "float32"}
    # Two rows are the whole data set, so that a step has no choice of rows.
    values["data"] |= {"documents": 2, "eval_documents": 0, "row_length": 1}
    values["schedule"] = {"log_steps": 1, "save_steps": 2}
    values["tracking"] = {"mode": "disabled"}
    return values


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without control tokens, which must not start differently under ZeRO-3."""
    directory = tmp_path_factory.mktemp("start")
    return saved_model(directory, initializer_range=0.2, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def alone(
    start: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """What one process without DeepSpeed logs, and the weights that it ends with."""
    directory = tmp_path_factory.mktemp("alone")
    logged = _run(directory, _values(directory, start, rows=2), count=1)
    model = AutoModelForCausalLM.from_pretrained(directory / "model")
    return logged, dict(model.named_parameters())


@pytest.mark.parametrize("deepspeed", ["zero1", "zero2", "zero3", "zero2-offload", "zero3-offload"])
def test_two_ranks_take_the_steps_of_one(tmp_path: Path, deepspeed: str, start: Path, alone: Any) -> None:
    file = ROOT / f"configs/deepspeed/{deepspeed}.json"
    logged = _run(tmp_path, _values(tmp_path, start, rows=1, deepspeed=str(file)), count=2)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    expected, weights = alone
    for entry, other in zip(logged, expected, strict=True):
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert entry["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    for name, parameter in saved.named_parameters():
        torch.testing.assert_close(parameter, weights[name], atol=2e-5, rtol=1e-3)
