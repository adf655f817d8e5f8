"""Each recipe of the repository takes its first step, on a tiny random model of the architecture that it names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from pasta.config import load_config
from pasta.engine import load_model
from pasta.lang import to_text
from pasta.training import preference, sft
from pasta.training.config import SftConfig
from pasta.training.preference_config import PreferenceConfig
from pasta.training.run import RunContext
from pasta.training.save import CARD
from tests.support.documents import random_document
from tests.support.models import CONFIGS
from tests.support.paths import ROOT
from tests.support.tokenizers import byte_level
from tests.training.pair_runs import pair_line
from tests.training.ranks import no_report, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
#: Recipe → the family of the model that it names.
SFT = {"gemma-7b": "gemma", "qwen3-8b-lora": "qwen3", "llama-3.1-8b": "llama", "llama-3.1-8b-heads": "llama"}
PREFERENCE = {"gemma-7b": "gemma", "llama-3.1-8b": "llama", "atlas": "qwen3"}


def _model(family: str, directory: Path) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(directory)
    byte_level().save_pretrained(directory)
    return str(directory)


def _sets(values: dict[str, Any]) -> list[str]:
    """Overrides that make a recipe small, and leave alone what it is about."""
    small = {
        "workers.use_gpu": False,
        "workers.num_workers": 1,
        "optimisation.epochs": 1,
        "optimisation.max_steps": 1,
        "optimisation.warmup_steps": 0,
        "optimisation.accumulate": 1,
        "schedule.save_steps": 0,
        "schedule.eval_steps": 0,
        "tracking.mode": "disabled",
        "data.max_length": 700,
    }
    return [f"{key}={json.dumps(value)}" for key, value in {**small, **values}.items()]


def _context(data_dir: Path, directory: Path) -> RunContext:
    return RunContext(data_dir, directory / "work", False, no_report)


@pytest.mark.parametrize("recipe", SFT)
def test_a_supervised_recipe_takes_its_first_step(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    model = _model(SFT[recipe], tmp_path / "start")
    stage = tmp_path / "stage"
    stage.mkdir()
    for shard in range(2):
        lines = [
            json.dumps(
                {
                    "messages": [{"role": "user", "content": f"Question {seed}?"}],
                    "annotated": to_text(random_document(seed)),
                }
            )
            for seed in range(10 * shard, 10 * shard + 10)
        ]
        (stage / f"annotated-{shard:05}.jsonl").write_text("\n".join(lines) + "\n")
    path = ROOT / f"configs/sft/{recipe}.yaml"
    recipe_values = yaml.safe_load(path.read_text())
    values = {
        "model.init_from": model,
        "output_dir": str(tmp_path / "model"),
        "data.source": str(stage),
        "data.eval_documents": 2,
        "data.eval_answers": 1,
    }
    if "draft_heads" in recipe_values:
        values |= {"output_dir": model, "draft_heads.width": 16, "draft_heads.guessed": 100}
        del values["data.eval_answers"]
        (Path(model) / CARD).write_text("{}")  # heads are put beside a model that was trained here
    if recipe_values["data"]["row_length"] > 1:
        values["data.row_length"] = 256
    if "tokenizer" in recipe_values["model"]:
        values["model.tokenizer"] = model
    config = load_config(path, SftConfig, _sets(values))
    prepared = sft.prepare(config, tmp_path / "data")
    run_ranks(sft.train, tmp_path / "ranks", config, _context(prepared.path, tmp_path), count=1)
    loaded = load_model(str(config.output_dir), device="cpu")
    assert loaded.num_parameters > 0
    assert (loaded.heads is not None) == ("draft_heads" in recipe_values)


@pytest.mark.parametrize("recipe", PREFERENCE)
def test_a_preference_recipe_takes_its_first_step(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(pair_line(seed)) for seed in range(8)) + "\n")
    values = {
        "model.init_from": _model(PREFERENCE[recipe], tmp_path / "start"),
        "output_dir": str(tmp_path / "model"),
        "data.source": str(tmp_path),
        "data.eval_pairs": 1,
    }
    config = load_config(ROOT / f"configs/preference/{recipe}.yaml", PreferenceConfig, _sets(values))
    prepared = preference.prepare(config, tmp_path / "data")
    run_ranks(preference.train, tmp_path / "ranks", config, _context(prepared.path, tmp_path), count=1)
    assert load_model(str(tmp_path / "model"), device="cpu").num_parameters > 0


@pytest.mark.parametrize("path", sorted((ROOT / "configs/sft").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_supervised_configuration_is_valid(path: Path) -> None:
    config = load_config(path, SftConfig)
    assert config.optimisation.deepspeed is None or (ROOT / config.optimisation.deepspeed).is_file()
