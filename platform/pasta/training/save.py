"""A finished model on disk: weights, configuration, tokenizer and model card, all or nothing."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from pasta.engine.pretrained import read_pretrained
from pasta.errors import UserError
from pasta.files import check_directory, check_replaced, full_disk_told
from pasta.rows import read_json
from pasta.stages.run import check_run_dir
from pasta.stages.stage import Manifest, write_manifest
from pasta.training.config import LoraSection, ModelSection, TrainingConfig
from pasta.training.lora import ADAPTER_DIR, merge_adapter
from pasta.training.model import build_model
from pasta.training.storage import check_written
from pasta.training.transformers_private import outside_deepspeed

CARD = "model_card.json"


def save_trained(
    trained: Path,
    output_dir: Path,
    section: ModelSection,
    lora: LoraSection | None,
    tokenizer: PreTrainedTokenizerBase,
    card: dict[str, Any],
    manifest: Manifest | None = None,
) -> None:
    """Write what a trainer left in ``trained`` to ``output_dir`` in ``section.save_dtype``, with ``card`` and
    ``manifest`` as JSON: a whole model, or with ``lora`` an adapter, which is merged.

    It is written to a directory beside ``output_dir`` and renamed, so that ``output_dir`` never holds half a model.
    """
    dtype = getattr(torch, section.save_dtype)
    staging = output_dir.with_name(f".{output_dir.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed and had this id
    staging.mkdir(parents=True)
    try:
        with full_disk_told(output_dir, "output_dir"):  # before what was written is deleted, which makes room
            with outside_deepspeed():
                if lora is None:
                    what = f"{output_dir}: the trained model"
                    model = read_pretrained(AutoModelForCausalLM, str(trained), what, dtype=dtype)
                else:
                    # The seed is for weights from scratch, which get no adapters.
                    model = merge_adapter(build_model(section, tokenizer, seed=0), trained).to(dtype)
                model.config.use_cache = True
                model.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
            card = {**card, "num_parameters": model.num_parameters(), "dtype": section.save_dtype}
            (staging / CARD).write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            if lora is not None and lora.keep_adapter:
                (staging / ADAPTER_DIR).mkdir()
                for path in trained.glob("adapter_*"):
                    shutil.copy(path, staging / ADAPTER_DIR)
            if manifest is not None:
                write_manifest(staging, manifest)
            for path in staging.rglob("*"):
                if path.is_file():
                    path.chmod(0o644)  # safetensors makes its files private; a shipped model is for everybody
            replace_directory(staging, output_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_run_and_output(config: TrainingConfig) -> None:
    """Raise UserError if a run's directories cannot be made, ``checkpoints`` cannot be written, or ``output_dir`` is in
    use for something else: a finished model takes its place."""
    check_run_dir(config)
    if config.checkpoints is not None:
        check_written(config.checkpoints)
    output_dir = config.output_dir
    if getattr(config, "draft_heads", None) is not None:  # written into the directory of any model
        check_directory(output_dir, "output_dir")
        return
    check_replaced(output_dir, "output_dir")
    if (os.path.exists(output_dir) and not os.path.isdir(output_dir)) or (
        os.path.isdir(output_dir) and any(output_dir.iterdir()) and read_card(output_dir) is None
    ):
        raise UserError(
            f"output_dir: {output_dir}: exists and is no model of this project; name another or move it away"
        )


def replace_directory(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``, taking the place of a directory that is there."""
    old = target.with_name(f".{target.name}.old.{os.getpid()}")
    if os.path.exists(target):
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def read_card(model_dir: Path) -> dict[str, Any] | None:
    """The model card in ``model_dir``, or None if no finished model of this project lies there."""
    try:
        card = read_json(model_dir / CARD)
    except UserError:
        return None
    return card if isinstance(card, dict) else None
