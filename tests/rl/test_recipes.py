"""Each recipe of the repository takes its first step, on a tiny random model of the architecture that it names."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pasta.config import load_config
from pasta.data.measures import measure_document
from pasta.data.prompts import Prompt, PromptsSection
from pasta.engine import load_model
from pasta.evaluation.prompts import read_prompts
from pasta.lang import Codec, to_text
from pasta.rl.config import RlConfig
from pasta.rl.rollouts import Group, Rollout, Weights
from pasta.rl.train import check_config, prepare, train
from pasta.stages.records import Record, RecordFile
from pasta.training.run import RunContext
from pasta.training.save import CARD
from tests.judges.test_judges import reward_model
from tests.support.documents import random_document
from tests.support.models import CONFIGS
from tests.support.paths import ROOT
from tests.support.tokenizers import byte_level
from tests.training.ranks import no_report, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECIPES = {"llama-3.1-8b": "llama", "atlas": "qwen3"}


class Recorded:
    """Answers as a model might have given them, and the weights that it was to give them with."""

    def __init__(self, config: RlConfig, model: Path) -> None:
        self._candidates, self._codec = (
            config.sampling.candidates,
            Codec(AutoTokenizer.from_pretrained(model)),
        )
        self._scored = bool(config.rollout.staleness)
        self.names: set[str] = set()

    def publish(self, weights: Weights, version: int) -> None:
        self.names = set(weights)
        assert all(tensor.numel() for tensor in weights.values()), "gathered"

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        return Rollout(
            [[self._answer(n + 7 * at) for n in range(self._candidates)] for at in range(len(groups))], 0
        )

    def _answer(self, seed: int) -> Record:
        document = random_document(seed)
        ids = [*self._codec.encode(document), self._codec.eos_id]
        counts = measure_document(document, self._codec)
        return {
            "annotated": to_text(document),
            "response_ids": ids,
            "finish_reason": "stop",
            "num_tokens": len(ids),
            "critical_path": counts.trace.critical_path,
            "num_threads": counts.num_threads,
            **({"logprobs": [-6.0] * len(ids)} if self._scored else {}),
        }


def first_step(config: RlConfig, context: RunContext, model: Path) -> None:
    """What the rank of a recipe does."""
    rollouts = Recorded(config, model)
    train(config, context, rollouts)
    assert "model.layers.0.self_attn.q_proj.weight" in rollouts.names
    assert not [name for name in rollouts.names if "lora" in name or "base_layer" in name]


def baselines(prompts: Sequence[Prompt], codec: Codec) -> list[Record]:
    """The twin's answers, of 60 tokens each."""
    twin = {"text": "Paris.", "num_tokens": 60, "finish_reason": "stop"}
    return [
        {"id": p.id, "messages": p.messages, "prompt_ids": codec.encode_prompt(p.messages), "twin": twin}
        for p in prompts
    ]


@pytest.mark.parametrize(
    ("recipe", "lora"), [("llama-3.1-8b", False), ("llama-3.1-8b", True), ("atlas", False)]
)
def test_a_recipe_takes_its_first_step(
    recipe: str, lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    model = tmp_path / "start"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[RECIPES[recipe]]).save_pretrained(model)
    byte_level().save_pretrained(model)
    path = ROOT / f"configs/rl/{recipe}.yaml"
    small: dict[str, Any] = {
        "model.init_from": str(model),
        "twin": None,
        "output_dir": str(tmp_path / "model"),
        "workers.use_gpu": False,
        "workers.num_workers": 1,
        "sampling.candidates": 4,
        "rollout.prompts": 2,
        "limits.max_tokens": 700,
        "optimisation.rows": 4,
        "optimisation.max_steps": 1,
        "optimisation.warmup_steps": 0,
        "schedule.save_steps": 0,
        "tracking.mode": "disabled",
    }
    if recipe != "atlas":
        small |= {
            "judge.reward.model": reward_model(tmp_path / "judge").model,
            "judge.reward.device": "cpu",
            "judge.reward.dtype": "float32",
        }
    if lora:
        small["lora"] = {"rank": 4}
    config = load_config(path, RlConfig, [f"{key}={json.dumps(value)}" for key, value in small.items()])
    tokenizer = check_config(config)
    codec = Codec(tokenizer)
    prompts = read_prompts(PromptsSection("atlas", 2))

    def answer(asked: Sequence[Prompt], answers: RecordFile) -> None:
        for record in baselines(asked, codec):
            answers.add(record["id"], record)

    prepared = prepare(config, tokenizer, prompts, answer, tmp_path / "data")
    context = RunContext(prepared.path, tmp_path / "work", False, no_report)
    run_ranks(first_step, tmp_path / "ranks", config, context, model, count=1)
    assert load_model(str(tmp_path / "model"), device="cpu").num_parameters > 0
    assert json.loads((tmp_path / "model" / CARD).read_text())["figures"]["steps"] == 1
