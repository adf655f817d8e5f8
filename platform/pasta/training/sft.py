"""Supervised fine-tuning: one run of TRL's SFTTrainer under thread masks, on every worker alike.

``prepare`` runs once before any worker starts and finds every mistake it can; ``train`` runs on each worker, inside
an initialised process group (or alone), and knows nothing of Ray: what happens is reported through a callback.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl import SFTConfig as TrlConfig

from pasta.data.collate import ThreadCollator
from pasta.data.dataset import Prepared, prepare_data
from pasta.errors import UserError
from pasta.lang import Codec
from pasta.tracking import Tracker
from pasta.training.callbacks import LOGGED
from pasta.training.config import SftConfig
from pasta.training.fit import run_trainer
from pasta.training.heads import HeadTrainer, install_draft_heads, model_files, save_heads
from pasta.training.held_out import documents_of
from pasta.training.lora import check_targets, new_rows, peft_config
from pasta.training.masks import install_thread_masks
from pasta.training.model import (
    ATLAS,
    build_model,
    check_trainable,
    compile_layers,
    make_tokenizer,
    new_token_ids,
)
from pasta.training.run import RunContext, check_deepspeed, trainer_arguments
from pasta.training.save import check_run_and_output
from pasta.training.trainer import Generation, PlainHeadTrainer, ThreadTrainer


def inputs(config: SftConfig) -> dict[str, str | Path]:
    """What a run reads: its data, the model it starts from, and the files that its configuration names."""
    named: dict[str, str | Path | None] = {
        "data.source": None if config.data.source == ATLAS else config.data.source,
        "model.init_from": config.model.init_from,
        "model.architecture": config.model.architecture,
        "model.tokenizer": None if config.model.tokenizer == ATLAS else config.model.tokenizer,
        "optimisation.deepspeed": config.optimisation.deepspeed,
    }
    if config.draft_heads is not None:
        del named["model.init_from"]  # its directory also holds what this run makes
        named |= model_files(config)
    return {key: path for key, path in named.items() if path is not None}


def prepare(config: SftConfig, cache_dir: Path, num_processes: int = 1) -> Prepared:
    """Check the configuration against the disk and make the data set, or find it made.

    Raises UserError for a missing or unfit model, tokenizer, DeepSpeed file or data file.
    """
    stage = check_deepspeed(config.optimisation)
    if config.draft_heads is not None and stage == 3:
        raise UserError(
            f"optimisation.deepspeed: {config.optimisation.deepspeed}: draft heads read the output layer's weights, "
            "which ZeRO-3 takes apart; expected a file of stage 2 or less"
        )
    check_run_and_output(config)
    tokenizer = make_tokenizer(config.model)
    check_trainable(config.model, tokenizer)
    new_tokens = config.lora is not None and bool(new_token_ids(config.model, tokenizer))
    check_targets(config.lora, config.model.init_from, new_tokens=new_tokens)
    if new_tokens and stage == 3:
        raise UserError(
            f"optimisation.deepspeed: {config.optimisation.deepspeed}: under ZeRO-3 PEFT cannot train the rows of "
            f"tokens that are new to {config.model.init_from}; expected a file of stage 2 or less"
        )
    return prepare_data(config.data, tokenizer, cache_dir, num_processes, f"{config.name}, data")


def train(config: SftConfig, context: RunContext) -> dict[str, float]:
    """Train, save the finished model or draft heads to ``config.output_dir`` (rank 0), and return its figures."""
    heads = config.draft_heads is not None

    def save(trained: Path, card: dict[str, Any]) -> None:
        save_heads(trained, config, card, context.stage)

    return run_trainer(
        "sft",
        config,
        context,
        lambda tokenizer, callbacks, tracker: make_trainer(config, context, tokenizer, callbacks, tracker),
        _held_out_figures,
        save if heads else None,
    )


def make_trainer(
    config: SftConfig,
    context: RunContext,
    tokenizer: PreTrainedTokenizerBase,
    callbacks: list[Any],
    tracker: Tracker,
) -> ThreadTrainer:
    """The trainer, ready to train: model, data and what is evaluated on the way."""
    # DeepSpeed may partition weights while they are made, so the trainer's arguments come first.
    arguments = trl_config(config, context)
    model = build_model(config.model, tokenizer, config.optimisation.seed)
    install_thread_masks(model)
    if config.draft_heads is not None:
        recipe = config.optimisation
        install_draft_heads(model, config.draft_heads, recipe.seed, bf16=arguments.bf16)
    if config.optimisation.compile:
        compile_layers(model)
    held_out_dir = context.data_dir / "eval"
    held_out = load_from_disk(str(held_out_dir)) if held_out_dir.is_dir() else None
    adapters = None
    if config.lora is not None:
        adapters = peft_config(config.lora, new_rows(model, new_token_ids(config.model, tokenizer)))
    # TRL's fused head cannot read a head some of whose rows are an adapter's.
    plain = not context.use_gpu or (adapters is not None and adapters.trainable_token_indices is not None)
    trainer_class = PlainHeadTrainer if plain else ThreadTrainer
    if config.draft_heads is not None:
        trainer_class = HeadTrainer
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=load_from_disk(str(context.data_dir / "train")),
        eval_dataset=held_out,
        data_collator=ThreadCollator(pad_id=int(tokenizer.pad_token_id), multiple=32),
        processing_class=tokenizer,
        callbacks=callbacks,
        peft_config=adapters,
        generation=_generation(config, held_out, tokenizer, tracker),
    )
    trainer.remove_callback(PrinterCallback)  # ProgressReporter says it
    return trainer


def trl_config(config: SftConfig, context: RunContext) -> TrlConfig:
    """The trainer's arguments."""
    evaluates = (context.data_dir / "eval").is_dir()  # not if all held-out answers are too long
    return TrlConfig(
        **trainer_arguments(config.optimisation, config.schedule, context, evaluates=evaluates),
        dataset_kwargs={"skip_prepare_dataset": True},
        packing=False,
    )


def _generation(
    config: SftConfig, held_out: Dataset | None, tokenizer: PreTrainedTokenizerBase, tracker: Tracker
) -> Generation | None:
    if held_out is None or not config.data.eval_answers:
        return None
    return Generation(
        documents=documents_of(held_out, config.data.eval_answers, Codec(tokenizer)),
        max_tokens=config.data.max_length,
        parallel=config.data.mode != "sequential",
        tokenizer=tokenizer,
        tracker=tracker,
    )


def _held_out_figures(trainer: ThreadTrainer) -> dict[str, float]:
    if trainer.eval_dataset is None:
        return {}
    figures = trainer.evaluate()
    return {name: float(value) for name, value in figures.items() if name in LOGGED}
