"""The paper's recipe, ``configs/pipelines/gemma-7b.yaml``: each of its stages, on a tiny model of Gemma's architecture.

The large models that it asks are stood in for over HTTP, its five quality weights are one, and the jobs' work is done
here instead of by Ray's workers, which the jobs' own tests are about.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import GemmaConfig, GemmaForCausalLM

from jobs import annotate, evaluate, pipeline, preference, sample, score, sft
from jobs.training import Train
from pasta.data.atlas import heldout_prompts
from pasta.data.atlas_keys import ATLAS
from pasta.data.tokenizers import find_tokenizer
from pasta.stages.stage import Manifest, read_manifest
from pasta.training.run import RunContext, TrainingStage
from tests.support.paths import ROOT
from tests.support.stand_in import stand_in_url
from tests.training.ranks import no_report, run_ranks

RECIPE = ROOT / "configs/pipelines/gemma-7b.yaml"
#: Short, so that a few steps teach how an answer ends.
TASKS = sorted(heldout_prompts(200), key=lambda task: (not task.independent, len(task.answer)))[:3]
STEPS = 60


@pytest.fixture
def url() -> Iterator[str]:
    """Teacher and judges."""
    with stand_in_url() as url:
        yield url


def save_base(directory: Path) -> str:
    """A base model of Gemma's architecture, whose tokenizer has few tokens."""
    torch.manual_seed(0)
    tokenizer = find_tokenizer(ATLAS)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = GemmaConfig(
        vocab_size=len(tokenizer), **sizes, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048
    )
    GemmaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def write_recipe(folder: Path, url: str) -> Path:
    """The shipped recipe with what makes it small; everything else is as it is shipped."""
    base = save_base(folder / "base")
    conversations = [
        {"conversations": [{"from": "human", "value": t.prompt}, {"from": "gpt", "value": t.answer}]}
        for t in TASKS
    ]
    source = folder / "slimorca.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in conversations))
    alpaca = folder / "alpaca_eval.json"
    alpaca.write_text(json.dumps([{"instruction": task.prompt} for task in TASKS]))
    worker = {"workers.num_workers": 1, "workers.use_gpu": False}
    endpoint = {"base_url": url, "api_key_env": None}
    training = {
        **worker,
        "data.max_length": 1024,
        "optimisation.precision": "fp32",
        "optimisation.deepspeed": None,
        "optimisation.warmup_steps": 0,
    }
    decoding = {
        **worker,
        "engine.device": "cpu",
        "engine.dtype": "float32",
        "engine.slot_tokens": 1024,
        "limits.max_tokens": 500,
    }
    judging = {f"judge.teacher.endpoint.{key}": value for key, value in endpoint.items()}
    small: dict[str, dict[str, Any]] = {
        "annotate": {
            "data.source.path": str(source),
            "data.source.records": None,
            "data.tokenizer": base,
            "workers.num_workers": 1,
            **{f"data.teacher.endpoint.{key}": value for key, value in endpoint.items()},
        },
        "sft": {
            **training,
            "model.init_from": base,
            "model.tokenizer": base,
            "data.documents": None,
            "data.eval_documents": 0,
            "data.eval_answers": 0,
            "optimisation.learning_rate": 1e-2,
            "optimisation.rows": len(TASKS),
            "optimisation.epochs": 1,
            "optimisation.max_steps": STEPS,
            "schedule.eval_steps": 0,
        },
        "sample": {
            **decoding,
            "prompts.count": len(TASKS),
            "sampling.candidates": 6,
            "sampling.top_k": 3,
            "shard_prompts": 3,
        },
        "score": {**worker, **judging},
        "preference": {
            **training,
            "data.eval_pairs": 0,
            "objective.num_samples": 6,
            "optimisation.epochs": 1,
            "optimisation.max_steps": 1,
            "schedule.eval_steps": 0,
        },
        "evaluate": {**decoding, **judging, "prompts.source": str(alpaca)},
    }
    recipe = yaml.safe_load(RECIPE.read_text())
    for section in recipe["stages"].values():
        section["set"] = {**section.get("set", {}), **small[section["job"]]}
    recipe |= {
        "storage": str(folder),
        "tracking": "disabled",
        "matrix": {column: values[2:3] for column, values in recipe["matrix"].items()},
    }
    path = folder / "gemma.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def one_by_one(
    make: Callable[[], Any], shards: Mapping[int, Any], finished: Callable[[int, Any], None], *_: Any
) -> None:
    """Stands in for ``jobs.pool.run_shards``."""
    if shards:
        work = make()
        for number, shard in shards.items():
            finished(number, work(shard))


def fit(train: Train, config: Any, stage: TrainingStage, *, data_dir: Path, address: str | None) -> None:
    """Stands in for ``jobs.training.fit``: one rank."""
    context = RunContext(data_dir, stage.run_dir, False, no_report, stage=stage)
    run_ranks(train, stage.run_dir / "ranks", config, context, count=1)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_stage_of_the_paper_s_recipe_runs_on_a_tiny_gemma(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in (annotate, sample, score, evaluate):
        monkeypatch.setattr(job, "run_shards", one_by_one)
    for job in (sft, preference):
        monkeypatch.setattr(job, "fit", fit)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["pipeline", "--config", str(write_recipe(tmp_path, url))])
    assert pipeline.main() == 0
    outputs = tmp_path / "runs/pipelines/gemma-7b"

    def manifest(stage: str) -> Manifest:
        (found,) = outputs.glob(f"{stage}-????????")
        read = read_manifest(found)
        assert read is not None
        return read

    assert manifest("annotate").figures["annotated"] > 0
    for stage, before in (("prefer-1-4", "sft"), ("prefer-2-4", "prefer-1-4")):
        read = manifest(stage).inputs
        assert read["model.init_from"]["fingerprint"] == manifest(before).identity
    evaluated = manifest("evaluate").figures
    assert (evaluated["prompts"], evaluated["judge_invalid"]) == (len(TASKS), 0)
    assert {f"{method}.realised" for method in ("pasta", "round-1-4", "round-2-4")} <= evaluated.keys()
