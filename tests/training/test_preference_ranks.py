"""Two ranks under DeepSpeed compute the objective that one computes by hand, step after step."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta.data.dataset import TOKENIZER_DIR
from pasta.engine import load_model
from pasta.training.preference import make_trainer, prepare, train
from pasta.training.preference_config import PreferenceConfig
from pasta.training.run import RunContext
from tests.support.paths import ROOT
from tests.training.pair_runs import (
    bonbon_by_hand,
    pair_examples,
    preference_config,
    preference_dict,
    save_tiny_model,
)
from tests.training.ranks import no_report, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ALPHA, SAMPLES, RATE = 0.2, 4, 1e-3


def _config(directory: Path, stage: int, **changes: Any) -> dict[str, Any]:
    """Two pairs on each of two ranks are the whole data set, so that a step has no choice of rows."""
    values = preference_dict(
        directory, learning_rate=RATE, deepspeed=str(ROOT / f"configs/deepspeed/zero{stage}.json")
    )
    values["objective"] = {"alpha": ALPHA, "num_samples": SAMPLES}
    values["schedule"] = {"log_steps": 1, "save_steps": 2}
    for section, section_changes in changes.items():
        values[section] = {**values.get(section, {}), **section_changes}
    return values


def _train(config: PreferenceConfig, data_dir: Path, work_dir: Path) -> None:
    train(config, RunContext(data_dir, work_dir, False, lambda metrics, checkpoint: None))


def _run(directory: Path, values: dict[str, Any], count: int = 2) -> list[dict[str, float]]:
    """What the trainer logged at each of two steps."""
    config = preference_config(values)
    prepared = prepare(config, directory / "data")
    run_ranks(
        _train, directory / f"ranks-{count}", config, prepared.path, directory / f"{count}", count=count
    )
    state = json.loads((directory / f"{count}/checkpoints/checkpoint-2/trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


def _by_hand(directory: Path) -> tuple[list[tuple[float, float]], torch.nn.Module]:
    """Loss and gradient norm of two AdamW steps, the rate falling to 0, and the model after them."""
    model, reference = (
        AutoModelForCausalLM.from_pretrained(directory / name, attn_implementation="eager")
        for name in ("start", "reference")
    )
    pairs = pair_examples(directory / "stage/pairs.jsonl")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    steps = []
    for step in range(2):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / 2)
        loss = bonbon_by_hand(model, reference, pairs, ALPHA, SAMPLES)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps.append((float(loss), float(norm)))
    return steps, model


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("log_probs", ["live", "precomputed"])
def test_two_ranks_take_the_steps_of_a_computation_by_hand(
    tmp_path: Path, stage: int, log_probs: str
) -> None:
    reference = save_tiny_model(tmp_path / "reference", seed=1)
    objective = {"reference": str(reference), "reference_log_probs": log_probs}
    logged = _run(tmp_path, _config(tmp_path, stage, objective=objective))
    expected, model = _by_hand(tmp_path)
    for entry, (loss, norm) in zip(logged, expected, strict=True):
        assert entry["loss"] == pytest.approx(loss, rel=1e-4)
        assert entry["grad_norm"] == pytest.approx(norm, rel=1e-3)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    for name, parameter in saved.named_parameters():
        torch.testing.assert_close(parameter, dict(model.named_parameters())[name], atol=2e-5, rtol=1e-4)


def _write_reference_logps(config: PreferenceConfig, data_dir: Path, path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    trainer = make_trainer(config, RunContext(data_dir, path.parent, False, no_report), tokenizer, [])
    path.write_text(json.dumps(trainer.train_dataset["ref_chosen_logps"][:]))


def test_precomputed_log_probabilities_of_one_reference_are_not_taken_for_another_s(tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        reference = save_tiny_model(tmp_path / f"reference-{seed}", seed=seed)
        objective = {"reference": str(reference), "reference_log_probs": "precomputed"}
        config = preference_config(_config(tmp_path, 3, objective=objective))
        data_dir, path = prepare(config, tmp_path / "data").path, tmp_path / f"{seed}.json"
        run_ranks(_write_reference_logps, tmp_path / f"ranks-{seed}", config, data_dir, path, count=1)
        found.append(json.loads(path.read_text()))
    assert found[0] != found[1]


LORA = {"rank": 4, "alpha": 8, "keep_adapter": True}


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """What one process without DeepSpeed logs with adapters, and the weights that it ends with."""
    directory = tmp_path_factory.mktemp("alone")
    values = _config(directory, 2, lora=LORA)
    values["optimisation"] |= {"rows": 4, "deepspeed": None}
    return _run(directory, values, count=1), _merged(directory)


def _merged(directory: Path) -> dict[str, torch.Tensor]:
    loaded = load_model(str(directory / "model"), dtype="float32", device="cpu", packed=False)
    return dict(loaded.model.named_parameters())


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_train_on_two_ranks_as_on_one_and_are_merged(tmp_path: Path, stage: int, alone: Any) -> None:
    logged = _run(tmp_path, _config(tmp_path, stage, lora=LORA))
    assert (tmp_path / "model/adapter/adapter_model.safetensors").is_file()
    expected, weights = alone
    for entry, other in zip(logged, expected, strict=True):
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert entry["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    for name, parameter in _merged(tmp_path).items():
        torch.testing.assert_close(parameter, weights[name], atol=2e-5, rtol=1e-4)
