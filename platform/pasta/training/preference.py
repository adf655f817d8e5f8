"""Preference training: one run of ``PreferenceTrainer`` on pairs of answers, on every worker alike.

``prepare`` runs once before any worker starts and finds every mistake it can; ``train`` runs on each worker, inside
an initialised process group (or alone), and knows nothing of Ray: what happens is reported through a callback.
"""

import gc
import sys
from pathlib import Path
from typing import Any

from datasets import load_from_disk
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl import DPOConfig

from pasta.data.pairs import PreparedPairs, pairs_file, prepare_pairs
from pasta.engine.sampling import ConstraintTable
from pasta.errors import UserError
from pasta.lang import Codec
from pasta.lang.tokenizer import stored_scheme
from pasta.rows import read_rows
from pasta.training.bonbon import PreferenceTrainer, bonbon_beta
from pasta.training.config import ModelSection
from pasta.training.fit import run_trainer
from pasta.training.lora import check_targets, peft_config
from pasta.training.masks import install_thread_masks
from pasta.training.model import build_model, compile_layers, inherited_scheme, trained_tokenizer
from pasta.training.permitted_pairs import PermittedPairCollator
from pasta.training.preference_config import ObjectiveSection, PreferenceConfig
from pasta.training.run import RunContext, check_deepspeed, trainer_arguments
from pasta.training.save import check_run_and_output

DPO_BETA = 0.1


def inputs(config: PreferenceConfig) -> dict[str, str | Path]:
    """What a run reads: its pairs, the model it starts from, the reference. Raises UserError for missing pairs."""
    named = {
        "data.source": pairs_file(config.data.source),
        "model.init_from": config.model.init_from,
        "objective.reference": config.objective.reference,
        "optimisation.deepspeed": config.optimisation.deepspeed,
    }
    return {key: path for key, path in named.items() if path is not None}


def prepare(config: PreferenceConfig, cache_dir: Path, num_processes: int = 1) -> PreparedPairs:
    """Check the configuration against the disk and make the data set, or find it made.

    Raises UserError for a missing or unfit model, reference, DeepSpeed file or file of pairs.
    """
    check_deepspeed(config.optimisation)
    check_run_and_output(config)
    tokenizer = trained_tokenizer(config.model, "model.init_from")
    _check_positions(config.model, tokenizer)
    check_targets(config.lora, config.model.init_from)
    reference = config.objective.reference
    if reference is not None:
        other = trained_tokenizer(_reference_section(config, reference), "objective.reference")
        if other.get_vocab() != tokenizer.get_vocab():
            raise UserError(
                f"objective.reference: {reference} has another vocabulary than {config.model.init_from}; "
                "expected a model with the same tokenizer"
            )
        if stored_scheme(other) != stored_scheme(tokenizer):
            raise UserError(
                f"objective.reference: {reference} has positions {stored_scheme(other)!r}, {config.model.init_from} "
                f"{stored_scheme(tokenizer)!r}; expected the same"
            )
    _check_num_samples(config)
    return prepare_pairs(config.data, tokenizer, cache_dir, num_processes, f"{config.name}, data")


def _check_num_samples(config: PreferenceConfig) -> None:
    """Compare the number of samples that the loss is made for with what jobs.score says of each pair.

    Raises UserError for a pair of more answers. Prints a warning on stderr if every pair is of fewer: some are wherever
    answers were left out.
    """
    objective, file = config.objective, pairs_file(config.data.source)
    if objective.loss != "bonbon" or objective.beta is not None:
        return
    most = 0
    for place, row in read_rows(file, key="data.source"):
        count = row.get("num_candidates")
        if not isinstance(count, int):
            continue
        if count > objective.num_samples:
            raise UserError(
                f"objective.num_samples: {objective.num_samples}, but {place} is the best and the worst of {count} "
                "answers; expected the number that sampling.candidates was"
            )
        most = max(most, count)
    if 0 < most < objective.num_samples:
        print(
            f"objective.num_samples: {objective.num_samples}, but no pair of {file} is of more than {most} answers; "
            "expected the number that sampling.candidates was",
            file=sys.stderr,
            flush=True,
        )


def train(config: PreferenceConfig, context: RunContext) -> dict[str, float]:
    """Train, save the finished model to ``config.output_dir`` (rank 0), and return its figures."""
    return run_trainer(
        "preference",
        config,
        context,
        lambda tokenizer, callbacks, _: make_trainer(config, context, tokenizer, callbacks),
        _held_out_figures,
    )


def make_trainer(
    config: PreferenceConfig,
    context: RunContext,
    tokenizer: PreTrainedTokenizerBase,
    callbacks: list[Any],
) -> PreferenceTrainer:
    """The trainer, ready to train: model and reference built, the reference's log-probabilities taken if asked for."""
    objective = config.objective
    data = {
        split: load_from_disk(str(context.data_dir / split))
        for split in ("train", "eval")
        if (context.data_dir / split).is_dir()
    }
    # DeepSpeed may partition weights while they are made, so the trainer's arguments come first.
    arguments = dpo_config(config, context)
    model, reference = _model(config, config.model, tokenizer), _reference(config, tokenizer)
    if config.optimisation.compile:
        compile_layers(model)
    vocab_size = model.config.get_text_config().vocab_size
    trainer = PreferenceTrainer(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=data["train"],
        eval_dataset=data.get("eval"),
        data_collator=PermittedPairCollator(
            pad_id=int(tokenizer.pad_token_id),
            multiple=32,
            table=ConstraintTable(Codec(tokenizer).grammar, vocab_size, arguments.device),
        ),
        processing_class=tokenizer,
        callbacks=callbacks,
        kept_dir=context.data_dir,
        peft_config=None if config.lora is None else peft_config(config.lora),
        bonbon_alpha=objective.alpha if objective.loss == "bonbon" else None,
    )
    trainer.remove_callback(PrinterCallback)  # ProgressReporter says it
    if objective.reference_log_probs == "precomputed":
        trainer.forget_reference()
        gc.collect()
    return trainer


def dpo_config(config: PreferenceConfig, context: RunContext) -> DPOConfig:
    """The trainer's arguments."""
    evaluates = bool(config.schedule.eval_steps) and (context.data_dir / "eval").is_dir()
    return DPOConfig(
        **trainer_arguments(config.optimisation, config.schedule, context, evaluates=evaluates),
        loss_type={"bonbon": "sigmoid", "dpo": "sigmoid", "ipo": "ipo"}[config.objective.loss],
        beta=effective_beta(config.objective),
        precompute_ref_log_probs=config.objective.reference_log_probs == "precomputed",
    )


def effective_beta(objective: ObjectiveSection) -> float:
    """The β that is used: the one given, BoNBoN's optimum for its number of samples, or 0.1."""
    if objective.beta is not None:
        return objective.beta
    return bonbon_beta(objective.num_samples) if objective.loss == "bonbon" else DPO_BETA


def _model(
    config: PreferenceConfig, section: ModelSection, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    model = build_model(section, tokenizer, config.optimisation.seed)
    install_thread_masks(model)
    return model


def _reference(config: PreferenceConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel | None:
    """The reference as a model of its own, or None where adapters switched off are the reference.

    Precomputing on the policy itself would wrap it in DeepSpeed twice, and fails under ZeRO-3.
    """
    objective = config.objective
    own = objective.reference is None
    if own and config.lora is not None and objective.reference_log_probs == "live":
        return None
    section = config.model if own else _reference_section(config, str(objective.reference))
    return _model(config, section, tokenizer)


def _reference_section(config: PreferenceConfig, reference: str) -> ModelSection:
    return ModelSection(init_from=reference, attention=config.model.attention)


def _check_positions(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> None:
    """Pairs are answers of the model as it is. Exact estimates are lost in pairs, whose text form has tens."""
    before = inherited_scheme(section, AutoTokenizer.from_pretrained(str(section.init_from)))
    if stored_scheme(tokenizer) != before:
        raise UserError(
            f"model.positions {section.positions!r}: {section.init_from} has {before!r}, and pairs compare its own "
            "answers; expected none"
        )
    if before == "predicted":
        raise UserError(
            f"model.init_from: {section.init_from} has positions 'predicted', whose estimates pairs do not hold (they "
            "are in tens); expected a model of other positions"
        )


def _held_out_figures(trainer: PreferenceTrainer) -> dict[str, float]:
    if trainer.eval_dataset is None:
        return {}
    figures = trainer.evaluate()
    out = {
        name: float(figures[key])
        for key, name in (("eval_loss", "eval_loss"), ("eval_rewards/accuracies", "eval_accuracy"))
        if key in figures
    }
    # In nats: how far the pairs moved apart, and how the log-probabilities of the better answers changed.
    return out | {
        name: float(figures[key]) / trainer.beta
        for key, name in (("eval_rewards/margins", "eval_delta"), ("eval_rewards/chosen", "eval_chosen_gain"))
        if key in figures
    }
