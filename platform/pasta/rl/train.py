"""Reinforcement learning: one run of ``ThreadGrpoTrainer`` on every worker alike, with answers from ``Rollouts``.

``prepare`` runs once before any worker starts and finds every mistake it can; ``train`` runs on each worker, inside
an initialised process group (or alone), and knows nothing of Ray.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from pasta.candidates.checks import check_model, check_vocabularies
from pasta.config import to_dict
from pasta.data.dataset import data_fingerprint, prepare_once
from pasta.data.measures import measure_document
from pasta.data.prompts import Prompt
from pasta.data.timeline import render_timeline
from pasta.data.tokenizers import read_config
from pasta.engine.families import text_part
from pasta.engine.head_files import check_heads_beside
from pasta.errors import UserError
from pasta.judges.judge import why_dropped
from pasta.judges.make import check_judge, make_judge
from pasta.lang import Codec, parse
from pasta.rl.batches import Batches, Source
from pasta.rl.config import RlConfig
from pasta.rl.grpo import ThreadGrpoTrainer
from pasta.rl.rollouts import Rollouts
from pasta.rows import read_whole_rows
from pasta.stages.records import Record, RecordFile, record_line
from pasta.stages.stage import input_fingerprint, model_inputs, read_manifest
from pasta.tracking import Tracker
from pasta.training.fit import run_trainer
from pasta.training.lora import check_targets, peft_config
from pasta.training.masks import install_thread_masks
from pasta.training.model import build_model, trained_tokenizer
from pasta.training.run import RunContext, check_deepspeed, trainer_arguments
from pasta.training.save import check_run_and_output
from pasta.training.transformers_private import outside_deepspeed

PROMPTS_FILE = "prompts.jsonl"
#: The table of answers and its columns, and how many of a batch it has.
EXAMPLES = "rl/examples"
COLUMNS = ("step", "prompt", "answer", "reward", "quality", "speedup", "threads", "lanes")
NUM_EXAMPLES = 8
#: A change of the prepared directory's form makes older ones stale.
FORMAT = 2


@dataclass(frozen=True, slots=True)
class PreparedPrompts:
    """A prepared directory, the number of its prompts, and of those left out: too long, or with a cut twin's answer."""

    path: Path
    num_prompts: int
    num_left_out: int
    reused: bool


def inputs(config: RlConfig) -> dict[str, str | Path]:
    """What a run reads: the model it starts from, its twin, a reward model, prompts, a DeepSpeed file."""
    judge = config.judge.reward.model if config.judge.reward else None
    models = model_inputs(
        {"model.init_from": config.model.init_from, "twin": config.twin, "judge.reward.model": judge}
    )
    deepspeed = config.optimisation.deepspeed
    recipe = {} if deepspeed is None else {"optimisation.deepspeed": deepspeed}
    return models | config.prompts.inputs() | recipe


def check_config(config: RlConfig) -> PreTrainedTokenizerBase:
    """Check a configuration against the disk; returns the model's tokenizer. Raises UserError."""
    check_deepspeed(config.optimisation, config.accumulate)
    check_run_and_output(config)
    check_judge(config.judge)
    tokenizer = trained_tokenizer(config.model, "model.init_from")
    _check_reference(config)
    check_targets(config.lora, config.model.init_from)
    check_heads_beside(str(config.model.init_from), "model.init_from")
    if config.twin is not None:
        check_vocabularies(
            tokenizer, str(config.model.init_from), check_model("twin", config.twin), config.twin
        )
    return tokenizer


def _check_reference(config: RlConfig) -> None:
    """TRL loads the reference by itself, and a model with a part for images as a whole, which no thread masks fit."""
    start = read_config("model.init_from", str(config.model.init_from))
    if config.objective.kl_weight and config.lora is None and text_part(start) is not start:
        raise UserError(
            f"objective.kl_weight: {config.objective.kl_weight}: {config.model.init_from} sees images, and only its "
            "part that writes text can be the reference; expected 0, lora, or a model that jobs.sft has trained"
        )


def prepare(
    config: RlConfig,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    answer: Callable[[Sequence[Prompt], RecordFile], None],
    cache_dir: Path,
) -> PreparedPrompts:
    """Write the prompts with the twin's answers under ``cache_dir``, or find them written.

    ``answer`` adds the twin's records of prompts by their ids (``Baselines.answer``) to those that a run which was cut
    has left. Raises UserError if no prompt is left.
    """

    def write(directory: Path) -> dict[str, int]:
        answers = RecordFile(answered, values)
        answer(prompts, answers)
        records = [answers.records[prompt.id] for prompt in prompts]
        kept = [record for record in records if not why_dropped(record)]
        if not kept:
            raise UserError(
                f"prompts.source: {config.prompts.source}: no prompt is left of {len(records)}: the twin's answer is "
                f"cut at limits.max_tokens={config.limits.max_tokens}, or the prompt is too long"
            )
        lines = (record_line({key: record[key] for key in record if key != "key"}) for record in kept)
        (directory / PROMPTS_FILE).write_text("".join(lines), encoding="utf-8")
        return {"num_prompts": len(kept), "num_left_out": len(records) - len(kept)}

    models = model_inputs({"twin": config.twin or config.model.init_from})
    values = {
        "format": FORMAT,
        "prompts": [prompt.id for prompt in prompts],
        "limits": to_dict(config.limits),
        "engine": to_dict(config.engine),
        "twin": {key: [input_fingerprint(key, path), _finished(Path(path))] for key, path in models.items()},
    }
    # The directory also holds the tokenizer that the model is trained and saved with.
    name = data_fingerprint(values, tokenizer)
    answered = cache_dir / f"{name}.twin.jsonl"
    path, counts, reused = prepare_once(cache_dir / name, tokenizer, write)
    answered.unlink(missing_ok=True)
    return PreparedPrompts(path=path, reused=reused, **counts)


def _finished(model: Path) -> str:
    """When a model was finished, if it says so: one that is trained again has the identity that it had."""
    manifest = read_manifest(model)
    return "" if manifest is None else manifest.finished


def train(
    config: RlConfig, context: RunContext, rollouts: Rollouts | None, api_key: str | None = None
) -> dict[str, float]:
    """Train, save the finished model to ``config.output_dir`` (rank 0), and return its figures.

    ``rollouts`` is given on rank 0 alone, where answers are judged as well; ``api_key`` is a teacher's.
    """
    records = list(read_whole_rows(context.data_dir / PROMPTS_FILE))
    source = None
    if rollouts is not None:
        context.work_dir.mkdir(parents=True, exist_ok=True)
        with outside_deepspeed():
            source = Source(rollouts, make_judge(config.judge, context.work_dir, api_key))
    made: list[Batches] = []

    def make(tokenizer: PreTrainedTokenizerBase, callbacks: list[Any], tracker: Tracker) -> ThreadGrpoTrainer:
        batches = Batches(config, records, Codec(tokenizer).grammar, source)
        made.append(batches)
        callbacks.append(Examples(config, batches, Codec(tokenizer), tracker))
        return make_trainer(config, context, tokenizer, callbacks, batches, records)

    try:
        # Of a teacher alone: it knows from its journal what earlier runs have paid.
        paid = source.judge.usage if source is not None and config.judge.kind == "teacher" else dict
        return run_trainer("rl", config, context, make, lambda trainer: _last_figures(trainer) | paid())
    finally:
        for batches in made:
            batches.close()


def make_trainer(
    config: RlConfig,
    context: RunContext,
    tokenizer: PreTrainedTokenizerBase,
    callbacks: list[Any],
    batches: Batches,
    records: Sequence[Record],
) -> ThreadGrpoTrainer:
    """The trainer, ready to train."""
    objective, recipe = config.objective, config.optimisation
    arguments = trainer_arguments(recipe, config.schedule, context, evaluates=False)
    arguments |= {
        "gradient_accumulation_steps": config.accumulate,
        "include_num_input_tokens_seen": "no",  # TRL counts them
    }
    for name in ("max_length", "train_sampling_strategy", "num_train_epochs"):
        del arguments[name]
    # DeepSpeed may partition weights while they are made, so the trainer's arguments come first.
    settings = GRPOConfig(
        **arguments,
        steps_per_generation=config.accumulate * objective.updates,
        num_generations=config.sampling.candidates,
        max_completion_length=config.limits.max_tokens,
        temperature=config.sampling.temperature,
        loss_type=objective.loss,
        scale_rewards="group" if objective.divide_by_spread else "none",
        epsilon=objective.epsilon,
        epsilon_high=objective.epsilon_high,
        beta=objective.kl_weight,
        shuffle_dataset=False,
        disable_dropout=True,
    )
    model = build_model(config.model, tokenizer, recipe.seed)
    install_thread_masks(model)
    tokenizer.padding_side = "left"
    with warnings.catch_warnings():
        # TRL's defaults are pinned here, and a test checks this seam.
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        trainer = ThreadGrpoTrainer(
            model=model,
            reward_funcs=[batches.rewards],
            args=settings,
            train_dataset=Dataset.from_list(
                [{"prompt": records[n]["messages"]} for batch in batches.schedule for n in batch]
            ),
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=None if config.lora is None else peft_config(config.lora),
            rollout_func=batches,
            grammar=Codec(tokenizer).grammar,
            limits=config.limits,
        )
    trainer.remove_callback(PrinterCallback)  # ProgressReporter says it
    return trainer


class Examples(TrainerCallback):
    """Tracks some answers of a batch, with their threads over time: at the first step, at checkpoints, at the last."""

    def __init__(self, config: RlConfig, batches: Batches, codec: Codec, tracker: Tracker) -> None:
        self._batches, self._codec, self._tracker = batches, codec, tracker
        self._every = config.schedule.save_steps or config.optimisation.max_steps or 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """TRL has learnt from a batch, or from a share of it."""
        due = state.global_step in (1, state.max_steps) or state.global_step % self._every == 0
        if not due or self._batches.last is None:
            return
        rows = example_rows(state.global_step, *self._batches.last, self._codec)
        self._tracker.table(EXAMPLES, COLUMNS, rows)


def example_rows(
    step: int, answers: Sequence[Record], prompts: Sequence[Record], codec: Codec
) -> list[list[Any]]:
    """Rows of ``COLUMNS``: the answers to a batch's first prompt."""
    rows = []
    messages = {prompt["id"]: prompt["messages"] for prompt in prompts}
    for answer in answers[:NUM_EXAMPLES]:
        counts = measure_document(parse(answer["annotated"]), codec)
        lanes = render_timeline(counts.trace, 80, topics=counts.topics, sync_id=counts.sync_id)
        shown = [answer[name] for name in ("reward", "quality", "speedup", "threads")]
        rows.append([step, messages[answer["id"]][-1]["content"], answer["annotated"], *shown, lanes])
    return rows


def _last_figures(trainer: ThreadGrpoTrainer) -> dict[str, float]:
    """Reward, quality and speedup of the last batches that were logged."""
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    return {
        name: float(logged[-1][name])
        for name in ("reward", "quality", "speedup")
        if logged and logged[-1].get(name) is not None
    }
