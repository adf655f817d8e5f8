"""Times the project's trainers beside TRL's own, as TRL ships them, on plain text of the same lengths."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_from_disk
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from pasta.data.dataset import TOKENIZER_DIR
from pasta.data.linearise import prompt_length
from pasta.data.pairs import SIDES
from pasta.errors import UserError
from pasta.interpreter import IGNORE
from pasta.tracking import Tracker
from pasta.training import preference, sft
from pasta.training.bonbon import TokenisedTrainer
from pasta.training.config import ModelSection, SftConfig
from pasta.training.lora import peft_config
from pasta.training.memory import keep_freed_memory
from pasta.training.model import build_model, compile_layers
from pasta.training.preference_config import PreferenceConfig
from pasta.training.run import RunContext
from pasta.training.without_wandb import without_wandb

with without_wandb():
    from trl import SFTTrainer

OURS = "ours"
_WARM_UP = 2
#: TRL's own trainers, by the attention implementation of transformers that they run with.
STOCK = ("sdpa", "eager")


@dataclasses.dataclass(frozen=True, slots=True)
class TimedSteps:
    """Training steps, one after another: seconds, and tokens that they read (without padding)."""

    seconds: float
    tokens: int


class Timer(TrainerCallback):
    """The ``steps`` of a run, from the end of step ``skip`` to the end of the last: forward, backward, the optimizer,
    and the data for them."""

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self._begun = (0.0, 0)
        self.steps = TimedSteps(0.0, 0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now, seen = time.perf_counter(), int(state.num_input_tokens_seen)
        if state.global_step == self._skip:
            self._begun = (now, seen)
        elif state.global_step == state.max_steps:
            self.steps = TimedSteps(now - self._begun[0], seen - self._begun[1])


def beside_stock(
    config: SftConfig | PreferenceConfig,
    directory: Path,
    *,
    use_gpu: bool,
    rounds: int,
    steps: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, TimedSteps]]:
    """Train ``rounds`` times by each way in turn (``OURS``, ``STOCK``), ``steps`` steps each after a few more.

    All ways have the same recipe, precision, model and order of rows, in one process without DeepSpeed; each has
    weights of its own. A row of the others is the tokens of one of ours as one text, and as many of them are learned.
    Their loss is TRL's: of preference runs DPO's, which takes the same log-probabilities as BoNBoN. ``directory`` gets
    the data. Raises UserError for a model or data that cannot be read.
    """
    config = _in_one_process(config, steps + _WARM_UP)
    if not use_gpu:
        keep_freed_memory()  # as training does
    if isinstance(config, SftConfig):
        data_dir = sft.prepare(config, directory / "data").path
    else:
        data_dir = preference.prepare(config, directory / "data").path
    context = RunContext(data_dir, directory, use_gpu, report=lambda figures, checkpoint: None)
    tokenizer = AutoTokenizer.from_pretrained(data_dir / TOKENIZER_DIR)
    trainers: dict[str, tuple[Trainer, Timer]] = {}
    for way in (OURS, *STOCK):
        timer = Timer(_WARM_UP)
        trainers[way] = (_trainer(way, config, context, tokenizer, timer), timer)
    taken: list[dict[str, TimedSteps]] = []
    ways = list(trainers)
    for number in range(rounds):
        entry: dict[str, TimedSteps] = {}
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            trainer, timer = trainers[way]
            trainer.train()
            entry[way] = timer.steps
        taken.append(entry)
        progress(f"round {number + 1} of {rounds}")
    return taken


def tokens_per_second(steps: Sequence[TimedSteps]) -> float:
    """Tokens a second, over all of them together."""
    return sum(each.tokens for each in steps) / sum(each.seconds for each in steps)


def _in_one_process(config: Any, max_steps: int) -> Any:
    if isinstance(config, SftConfig):
        if config.draft_heads is not None:
            raise UserError("draft_heads: TRL trains none; expected a recipe that trains a model")
        data: Any = dataclasses.replace(config.data, eval_documents=0, eval_answers=0)
    else:
        data = dataclasses.replace(config.data, eval_pairs=0)
    recipe = dataclasses.replace(
        config.optimisation, deepspeed=None, max_steps=max_steps, epochs=1.0, warmup_steps=0
    )
    schedule = dataclasses.replace(
        config.schedule, log_steps=0, save_steps=0, eval_steps=0, keep_checkpoints=2
    )
    return dataclasses.replace(config, data=data, optimisation=recipe, schedule=schedule)


def _trainer(
    way: str,
    config: SftConfig | PreferenceConfig,
    context: RunContext,
    tokenizer: PreTrainedTokenizerBase,
    timer: Timer,
) -> Trainer:
    trainer: Trainer
    if isinstance(config, SftConfig):
        if way == OURS:
            return sft.make_trainer(config, context, tokenizer, [timer], Tracker())
        trainer = SFTTrainer(
            args=sft.trl_config(config, context),
            train_dataset=plain_rows(load_from_disk(str(context.data_dir / "train"))),
            **_stock(way, config, tokenizer, timer),
        )
    else:
        if way == OURS:
            return preference.make_trainer(config, context, tokenizer, [timer])
        # With adapters the model without them is the reference.
        apart = config.objective.reference_log_probs == "live" and config.lora is None
        trainer = TokenisedTrainer(
            args=preference.dpo_config(config, context),
            train_dataset=plain_pairs(load_from_disk(str(context.data_dir / "train"))),
            ref_model=_model(config.model, way, tokenizer, config.optimisation.seed) if apart else None,
            **_stock(way, config, tokenizer, timer),
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _stock(
    way: str, config: SftConfig | PreferenceConfig, tokenizer: PreTrainedTokenizerBase, timer: Timer
) -> dict[str, Any]:
    model = _model(config.model, way, tokenizer, config.optimisation.seed)
    if config.optimisation.compile:
        compile_layers(model)
    adapters = None if config.lora is None else peft_config(config.lora)
    return {"model": model, "processing_class": tokenizer, "callbacks": [timer], "peft_config": adapters}


def _model(
    section: ModelSection, attention: Any, tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    return build_model(dataclasses.replace(section, attention=attention), tokenizer, seed)


def plain_rows(rows: Dataset) -> Dataset:
    """Each row of ``packing.FEATURES`` as one text: its tokens, of which those are learned that ours predicts."""

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {"labels": _learned(row), "length": row["length"]}

    return rows.map(plain, remove_columns=[name for name in rows.column_names if name != "input_ids"])


def plain_pairs(pairs: Dataset) -> Dataset:
    """Each of ``pairs.PAIR_FEATURES`` as TRL's collator takes it: a prompt, and two answers as one text each."""

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        prompt = prompt_length(row[SIDES[0]]["shift_labels"])  # both sides have the same
        ids = {f"{side}_ids": row[side]["input_ids"][prompt:] for side in SIDES}
        return {"prompt_ids": row[SIDES[0]]["input_ids"][:prompt], **ids, "length": row["length"]}

    return pairs.map(plain, remove_columns=pairs.column_names)


def _learned(row: dict[str, Any]) -> list[int]:
    targets = [IGNORE, *row["shift_labels"][:-1]]
    return [
        IGNORE if target == IGNORE else token for token, target in zip(row["input_ids"], targets, strict=True)
    ]
