"""Supervised fine-tuning: one run of TRL's SFTTrainer under thread masks, on every worker alike.

``prepare`` runs once before any worker starts and finds every mistake it can; ``train`` runs on each worker, inside
an initialised process group (or alone), and knows nothing of Ray: what happens is reported through a callback.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset, load_from_disk
from torch import nn
from transformers import AutoTokenizer, Trainer
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from pasta.config import fingerprint, to_dict
from pasta.data.collate import ThreadCollator
from pasta.data.dataset import TOKENIZER_DIR, Prepared, prepare_data
from pasta.errors import UserError
from pasta.tracking import start_tracker
from pasta.training.callbacks import CheckpointReporter, ProgressReporter
from pasta.training.config import SftConfig
from pasta.training.masks import install_thread_masks
from pasta.training.model import build_model, check_model, decoder_layers, load_tokenizer
from pasta.training.save import check_output_dir, save_model

Report = Callable[[dict[str, float], Path | None], None]


class PlainHeadTrainer(SFTTrainer):
    """SFTTrainer with the model's own loss.

    TRL's fused head saves memory on a GPU; on a CPU it scores every row twice and costs a third more time.
    """

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        return Trainer.compute_loss(
            self, model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch
        )


@dataclass(frozen=True, slots=True)
class SftContext:
    """What a worker is told about where it runs.

    ``work_dir`` is storage that all workers share. ``report(metrics, checkpoint)`` is called by every worker at every
    checkpoint, with the directory on rank 0 and None elsewhere.
    """

    data_dir: Path
    work_dir: Path
    use_gpu: bool
    report: Report
    resume_from: Path | None = None
    code_version: str = "unknown"


def prepare(config: SftConfig, cache_dir: Path, num_processes: int = 1) -> Prepared:
    """Check the configuration against the disk and make the data set, or find it made.

    Raises UserError for a missing or unfit model, tokenizer, DeepSpeed file or data file.
    """
    deepspeed_config(config)
    check_output_dir(config.output_dir)
    tokenizer = load_tokenizer(config.model)
    check_model(config.model, tokenizer)
    return prepare_data(config.data, tokenizer, cache_dir, num_processes)


def train(config: SftConfig, context: SftContext) -> dict[str, float]:
    """Train, save the finished model to ``config.output_dir`` (rank 0), and return its figures."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    tokenizer = AutoTokenizer.from_pretrained(context.data_dir / TOKENIZER_DIR)
    # DeepSpeed may partition weights while they are made, so the trainer's arguments come first.
    arguments = trl_config(config, context)
    model = build_model(config.model, tokenizer, config.optimisation.seed)
    install_thread_masks(model)
    if config.optimisation.compile:
        for layer in decoder_layers(model):
            layer.compile()
    rows = load_from_disk(str(context.data_dir / "train"))
    held_out = (
        load_from_disk(str(context.data_dir / "eval")) if (context.data_dir / "eval").is_dir() else None
    )
    tracker = start_tracker(
        config.tracking,
        run_dir=context.work_dir,
        name=config.name,
        job="sft",
        config=to_dict(config),
        rank=rank,
    )
    progress = ProgressReporter(tracker, rank)
    trainer_class = SFTTrainer if context.use_gpu else PlainHeadTrainer
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=held_out if config.schedule.eval_steps else None,
        data_collator=ThreadCollator(pad_id=int(tokenizer.pad_token_id), multiple=32),
        processing_class=tokenizer,
        callbacks=[progress, CheckpointReporter(context.report, rank)],
    )
    started = time.perf_counter()
    result = trainer.train(resume_from_checkpoint=str(context.resume_from) if context.resume_from else None)
    figures = {
        "steps": float(trainer.state.global_step),
        "train_loss": float(result.training_loss),
        "train_tokens": float(trainer.state.num_input_tokens_seen),
        "seconds": time.perf_counter() - started,
        **_held_out_loss(trainer, held_out),
    }
    staging = context.work_dir / "final"
    trainer.save_model(str(staging))  # every worker: ZeRO-3 gathers the weights
    if rank == 0:
        card = {
            "name": config.name,
            "figures": figures,
            "config": to_dict(config),
            "config_fingerprint": fingerprint(config),
            "code_version": context.code_version,
            "data": json.loads((context.data_dir / "manifest.json").read_text(encoding="utf-8")),
        }
        save_model(staging, config.output_dir, config.model.save_dtype, tokenizer, card)
        tracker.summary(figures)
    tracker.finish()
    if dist.is_initialized():
        dist.barrier()
    return figures


def trl_config(config: SftConfig, context: SftContext) -> TrlConfig:
    """The trainer's arguments. Everything that would touch columns, masks or labels behind our back is off."""
    recipe, schedule = config.optimisation, config.schedule
    return TrlConfig(
        output_dir=str(context.work_dir / "checkpoints"),
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="linear" if recipe.decay == "linear" else "constant_with_warmup",
        warmup_steps=recipe.warmup_steps,
        per_device_train_batch_size=recipe.rows,
        per_device_eval_batch_size=recipe.rows,
        gradient_accumulation_steps=recipe.accumulate,
        max_steps=recipe.max_steps if recipe.max_steps is not None else -1,
        num_train_epochs=recipe.epochs,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        bf16=recipe.precision == "bf16",
        fp16=False,
        tf32=None,
        gradient_checkpointing=recipe.gradient_checkpointing,
        deepspeed=deepspeed_config(config),
        seed=recipe.seed,
        use_cpu=not context.use_gpu,
        logging_steps=schedule.log_steps,
        save_strategy="steps" if schedule.save_steps else "no",
        save_steps=schedule.save_steps or 500,
        save_total_limit=1,
        eval_strategy="steps" if schedule.eval_steps and config.data.eval_documents else "no",
        eval_steps=schedule.eval_steps or None,
        include_num_input_tokens_seen="non_padding",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=context.use_gpu,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        ddp_find_unused_parameters=False,
    )


def deepspeed_config(config: SftConfig) -> dict[str, Any] | None:
    """The DeepSpeed JSON as a dictionary. Raises UserError if it is missing or not JSON."""
    path = config.optimisation.deepspeed
    if path is None:
        return None
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"optimisation.deepspeed: {path}: no such file; see configs/deepspeed") from None
    except json.JSONDecodeError as error:
        raise UserError(f"optimisation.deepspeed: {path}:{error.lineno}: not JSON: {error.msg}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"optimisation.deepspeed: {path}: expected a JSON object")
    return loaded


def _held_out_loss(trainer: SFTTrainer, held_out: Dataset | None) -> dict[str, float]:
    if held_out is None:
        return {}
    return {"eval_loss": float(trainer.evaluate(held_out)["eval_loss"])}
