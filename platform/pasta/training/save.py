"""A finished model on disk: weights, configuration, tokenizer and model card, all or nothing."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from pasta.errors import UserError

CARD = "model_card.json"


def save_model(
    trained: Path, output_dir: Path, dtype: str, tokenizer: PreTrainedTokenizerBase, card: dict[str, Any]
) -> None:
    """Write the model saved in ``trained`` to ``output_dir`` in ``dtype``, with ``card`` as JSON.

    Written to a directory beside it and renamed, so that ``output_dir`` never holds half a model.
    """
    staging = output_dir.with_name(f".{output_dir.name}.{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(trained, dtype=getattr(torch, dtype))
        model.config.use_cache = True
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        card = {**card, "num_parameters": model.num_parameters(), "dtype": dtype}
        (staging / CARD).write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for path in staging.iterdir():
            path.chmod(0o644)  # safetensors makes its files private; a shipped model is for everybody
        replace_directory(staging, output_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_output_dir(output_dir: Path) -> None:
    """Raise UserError if ``output_dir`` is in use for something else: a finished model takes the directory's place."""
    if output_dir.is_file() or (
        output_dir.is_dir() and any(output_dir.iterdir()) and read_card(output_dir) is None
    ):
        raise UserError(
            f"output_dir: {output_dir}: exists and is no model of this project; name another or move it away"
        )


def replace_directory(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``, taking the place of a directory that is there."""
    old = target.with_name(f".{target.name}.old.{os.getpid()}")
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def read_card(model_dir: Path) -> dict[str, Any] | None:
    """The model card in ``model_dir``, or None if no finished model of this project lies there."""
    try:
        card = json.loads((model_dir / CARD).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return card if isinstance(card, dict) else None
