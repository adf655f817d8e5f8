"""A training run of seconds: a tiny model, a JSONL file of nested documents, everything in one directory."""

import json
from pathlib import Path
from typing import Any

import yaml

from pasta.config import parse_config
from pasta.lang import to_text
from pasta.stages.stage import Stage
from pasta.training.config import SftConfig
from pasta.training.run import TrainingStage
from tests.support.documents import random_document
from tests.support.tokenizers import byte_level

ARCHITECTURE = {
    "model_type": "llama",
    "config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}


def sft_dict(directory: Path, **recipe: Any) -> dict[str, Any]:
    """The YAML of a tiny run, with its model, tokenizer and data written to ``directory``."""
    tokenizer = directory / "tokenizer"
    if not tokenizer.exists():
        byte_level().save_pretrained(tokenizer)
        (directory / "model.yaml").write_text(yaml.safe_dump(ARCHITECTURE))
        lines = [
            json.dumps(
                {
                    "messages": [{"role": "user", "content": f"Question {seed}?"}],
                    "annotated": to_text(random_document(seed)),
                }
            )
            for seed in range(60)
        ]
        (directory / "data.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "name": "tiny",
        "output_dir": str(directory / "model"),
        "run_dir": str(directory / "runs"),
        "model": {
            "architecture": str(directory / "model.yaml"),
            "tokenizer": str(tokenizer),
            "attention": "eager",
        },
        "data": {
            "source": str(directory / "data.jsonl"),
            "mode": "pasta",
            "row_length": 128,
            "max_length": 1024,
            "eval_documents": 4,
        },
        "optimisation": {"learning_rate": 1e-3, "rows": 2, "max_steps": 6, "precision": "fp32", **recipe},
        "schedule": {"log_steps": 1, "save_steps": 3},
        "workers": {"num_workers": 2, "use_gpu": False},
    }


def sft_config(directory: Path, **recipe: Any) -> SftConfig:
    """The same as a configuration."""
    return parse_config(sft_dict(directory, **recipe), SftConfig, "tiny.yaml")


def as_earlier(stage: TrainingStage, config: SftConfig) -> Stage:
    """The stage as commits knew it that took the steps of logging and checkpoints into its identity."""
    return Stage(stage.stage, config, {name: value["path"] for name, value in stage.inputs.items()})


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    """``config`` as a YAML file."""
    path = directory / "sft.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
