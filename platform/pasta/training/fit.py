"""Runs a trainer from its data to the finished model: for supervised and preference training alike."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, TrainerState

from pasta.config import to_dict
from pasta.data.dataset import TOKENIZER_DIR
from pasta.rows import read_json
from pasta.tracking import Tracker, start_tracker
from pasta.training.callbacks import CheckpointReporter, ConfiguredSteps, EpochOrder, ProgressReporter
from pasta.training.config import TrainingConfig
from pasta.training.run import FINAL, RunContext
from pasta.training.save import save_trained

T = TypeVar("T", bound=Trainer)


def run_trainer(
    job: str,
    config: TrainingConfig,
    context: RunContext,
    make_trainer: Callable[[PreTrainedTokenizerBase, list[Any], Tracker], T],
    held_out_figures: Callable[[T], dict[str, float]],
    save: Callable[[Path, dict[str, Any]], None] | None = None,
) -> dict[str, float]:
    """Train on this worker, save the finished model to ``config.output_dir`` (rank 0), and return its figures.

    ``job`` names the run's kind to the tracker; ``held_out_figures`` are taken after the last step. Figures are of the
    whole run, but for ``seconds``: a run that resumes does not know the earlier ones.
    ``save`` puts what the trainer left in a directory where it belongs, with a card; by default it is a model.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    tokenizer = AutoTokenizer.from_pretrained(context.data_dir / TOKENIZER_DIR)
    tracker = start_tracker(
        config.tracking,
        run_dir=context.work_dir,
        name=config.name,
        job=job,
        config=to_dict(config),
        rank=rank,
    )
    steps = ConfiguredSteps()
    callbacks = [
        CheckpointReporter(context.report, rank),
        ProgressReporter(tracker, rank),
        EpochOrder(),
        steps,
    ]
    trainer = make_trainer(tokenizer, callbacks, tracker)
    started = time.perf_counter()
    result = trainer.train(resume_from_checkpoint=str(context.resume_from) if context.resume_from else None)
    figures = {
        "steps": float(trainer.state.global_step),
        **_mean_loss(trainer.state, steps.first_step, float(result.training_loss)),
        "train_tokens": float(trainer.state.num_input_tokens_seen),
        "seconds": time.perf_counter() - started,
        **held_out_figures(trainer),
    }
    staging = context.work_dir / FINAL
    trainer.save_model(str(staging))  # every worker: ZeRO-3 gathers the weights
    if rank == 0:
        card = {
            "name": config.name,
            "figures": figures,
            "config": to_dict(config),
            "code_version": context.code_version,
            "data": read_json(context.data_dir / "manifest.json"),
        }
        if save is not None:
            save(staging, card)
        else:
            manifest = context.manifest(figures)
            save_trained(staging, config.output_dir, config.model, config.lora, tokenizer, card, manifest)
        tracker.summary(figures)
    tracker.finish()
    if dist.is_initialized():
        dist.barrier()
    return figures


def _mean_loss(state: TrainerState, first_step: int, loss: float) -> dict[str, float]:
    """``train_loss``, the mean over the steps: ``loss`` is the trainer's, over those after ``first_step`` alone. Of
    earlier ones it is what was logged; nothing if no step is known."""
    total = loss * (state.global_step - first_step) if state.global_step > first_step else 0.0
    known = 0
    for entry in state.log_history:
        if "loss" in entry and entry["step"] <= first_step:
            total += entry["loss"] * (entry["step"] - known)
            known = entry["step"]
    known += state.global_step - first_step
    return {"train_loss": total / known} if known else {}
