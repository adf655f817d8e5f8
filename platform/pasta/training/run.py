"""Shared by supervised and preference runs: a worker's context, and the arguments of its trainer."""

import copy
import glob
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pasta.config import to_dict
from pasta.engine.snapshots import has_weights
from pasta.errors import UserError
from pasta.files import annotated_files, read_text, write_whole
from pasta.rows import read_json, short_repr
from pasta.stages.run import check_apart
from pasta.stages.shards import content_digest
from pasta.stages.stage import MANIFEST, Manifest, Stage, read_manifest
from pasta.stages.workers import WorkersSection
from pasta.training.config import OptimisationSection, ScheduleSection, TrainingConfig
from pasta.training.deepspeed_private import compile_no_communication, import_no_compiler
from pasta.training.storage import open_url, remove

#: Keys of ``schedule`` that change no weight.
_UNSEEN_STEPS = ("log_steps", "save_steps", "keep_checkpoints")

#: Keys of a DeepSpeed file that say what one of ``optimisation`` says, and what is taken where they are missing.
_OF_RECIPE = {
    "train_micro_batch_size_per_gpu": ("rows", None),
    "gradient_accumulation_steps": ("accumulate", "auto"),
    "gradient_clipping": ("max_grad_norm", 1.0),
}
_GATHERS = "stage3_gather_16bit_weights_on_model_save"

#: The input whose content a stage's identity need not tell, and the file in a run's directory that names the data made
#: of it.
_DATA, _BEGAN = "data.source", "data.txt"

#: In a run's directory: the trainer's own checkpoints, and what it leaves after the last step.
CHECKPOINTS, FINAL = "checkpoints", "final"
#: Characters of a run's identity in the name of its directory.
_IDENTITY_CHARS = 8

Report = Callable[[dict[str, float], Path | None], None]


@dataclass(frozen=True, slots=True)
class RunContext:
    """A worker's context.

    ``work_dir`` is storage that all workers share. ``report(metrics, checkpoint)`` is called by every worker at every
    checkpoint, with the directory on rank 0 and None elsewhere. ``stage`` describes the finished model in its manifest;
    without it there is no manifest.
    """

    data_dir: Path
    work_dir: Path
    use_gpu: bool
    report: Report
    stage: Stage | None = None
    resume_from: Path | None = None
    code_version: str = "unknown"

    def manifest(self, figures: Mapping[str, Any]) -> Manifest | None:
        """Make the finished model's manifest."""
        return None if self.stage is None else self.stage.to_manifest(figures, self.code_version)


class TrainingStage(Stage):
    """A training run on disk. Unfinished work lies in ``run_dir``; the finished model takes ``output_dir``'s place.

    ``checkpoints`` is the URL of this run's, None if they are in ``run_dir``. With ``restart``, ``start`` deletes both,
    and ``replace`` keeps the model that is there from passing for this run's. Raises UserError, naming the input, for
    one that is not there or that this run would write in, and for a URL that cannot be opened.
    """

    def __init__(
        self, job: str, config: TrainingConfig, inputs: Mapping[str, str | Path], *, restart: bool = False
    ) -> None:
        super().__init__(job, _content(to_dict(config)), inputs)
        #: A digest of the answers in a stage of data, which has the same identity when it is made again.
        self.answers = ""
        if _DATA in inputs and os.path.isdir(inputs[_DATA]):
            self.answers = content_digest(annotated_files(Path(inputs[_DATA])))
            self.inputs[_DATA]["answers"] = self.answers
        self.output_dir = config.output_dir
        self._name = config.name
        name = f"{config.name}-{self.identity[:_IDENTITY_CHARS]}"
        self.run_dir = (config.run_dir / name).absolute()
        self.checkpoints = config.checkpoints and f"{config.checkpoints.rstrip('/')}/{name}"
        if self.checkpoints is not None:
            open_url(self.checkpoints)
        check_apart(self.run_dir, self.output_dir, "run_dir")
        self.check_outside(self.output_dir, "output_dir")
        self.check_outside(self.run_dir, "run_dir")
        self._begins_anew = restart
        found = self._found()
        self.is_done = not restart and found is not None
        #: What describes the earlier model that this run makes anew, if there is one.
        self._replaced = found if restart else None

    @property
    def restarts(self) -> bool:
        """Whether ``start`` or ``replace`` will still delete what this run has left; in any process."""
        return self._begins_anew or (self._replaced is not None and self._found() == self._replaced)

    def made(self, manifest: Manifest) -> bool:
        """Whether ``manifest`` describes this run's model."""
        answers = manifest.inputs.get(_DATA, {}).get("answers", "")
        return self.is_known_as(manifest.identity, manifest.config, answers)

    def is_known_as(self, identity: str, config: Mapping[str, Any], answers: str) -> bool:
        """Whether a run of this ``identity`` and ``config``, which read these ``answers`` ("": not recorded), is this
        one.

        Earlier commits took the steps of logging and checkpoints into the identity: theirs is the one that this run has
        with the steps that ``config`` records.
        """
        steps = {key: value for key, value in config.get("schedule", {}).items() if key in _UNSEEN_STEPS}
        named = self.named_as(config)
        earlier = {**named, "schedule": {**named["schedule"], **steps}}
        known = (self.identity, self.identity_with(named), self.identity_with(earlier))
        return answers in ("", self.answers) and identity in known

    def difference(self, other: Manifest) -> str:
        """The first thing that ``other`` was made with differently, and that the weights depend on."""
        if self.is_known_as(other.identity, other.config, ""):
            return f"other answers in {_DATA} ({self.inputs[_DATA]['path']})"
        return super().difference(replace(other, config=_content(other.config)))

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run left unfinished work."""
        return not self._begins_anew and self.run_dir.is_dir()

    @property
    def has_checkpoints(self) -> bool:
        """Whether this run has made a checkpoint, wherever finished ones are kept."""
        return _made_checkpoints(self.run_dir)

    def unfinished_others(self) -> list[Path]:
        """The directories of runs of this name that were cut after a checkpoint, with another configuration or other
        inputs."""
        named = f"{glob.escape(self._name)}-{'[0-9a-f]' * _IDENTITY_CHARS}"
        found = sorted(self.run_dir.parent.glob(named))
        return [
            path
            for path in found
            if path != self.run_dir and _made_checkpoints(path) and not (path / FINAL).is_dir()
        ]

    def start(self, data_dir: Path) -> None:
        """Forget unfinished work if this run begins anew; else see to it that ``data_dir`` holds what it began with.

        Raises UserError if it does not: a stage of data that was made again has the identity that it had.
        """
        if self._begins_anew:
            shutil.rmtree(self.run_dir, ignore_errors=True)
            if self.checkpoints is not None:
                remove(self.checkpoints)
            self._begins_anew = False
        if _DATA not in self.inputs:  # the atlas, or prompts: they follow from the configuration
            return
        began = self.run_dir / _BEGAN
        if not began.is_file():
            write_whole(began, data_dir.name + "\n")
        elif read_text(began).strip() != data_dir.name:
            raise UserError(
                f"{_DATA}: {self.inputs[_DATA]['path']}: has changed since this run began ({self.run_dir}); expected "
                "the same data, or --restart to train on these from the start"
            )

    def replace(self) -> None:
        """Keep the model that this run makes anew, if it is still there, from passing for this run's: call it once
        there is a checkpoint to go on from. The model's files stay until the new one takes their place."""
        if self._replaced is not None and self._found() == self._replaced:
            self._forget_output()
        self._replaced = None

    def _found(self) -> Any:
        """What describes this run's model in ``output_dir``; None if there is none, or if its weights are gone."""
        manifest = read_manifest(self.output_dir)
        is_ours = manifest is not None and self.made(manifest) and has_weights(self.output_dir)
        return manifest if is_ours else None

    def _forget_output(self) -> None:
        (self.output_dir / MANIFEST).unlink()


def _made_checkpoints(run_dir: Path) -> bool:
    return any(run_dir.glob(f"{CHECKPOINTS}/*/"))


def _content(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's values, with those that no weight depends on at their defaults: a run that has had too many
    failures goes on from its last checkpoint where more are allowed, or where it is logged or saved at other steps."""
    content = copy.deepcopy(dict(values))
    for section in (content, content.get("rollout", {})):
        if "workers" in section:
            section["workers"]["max_failures"] = WorkersSection().max_failures
    if "schedule" in content:
        content["schedule"] |= {key: getattr(ScheduleSection(), key) for key in _UNSEEN_STEPS}
    return content


def uses_bfloat16(recipe: OptimisationSection, *, use_gpu: bool) -> bool:
    """Whether the products of this run are in bfloat16 (autocast) on this machine.

    ``precision: auto`` takes it where the machine has instructions for it. A CPU without them takes dozens of times as
    long as in float32: 68 times, for a product of 512 × 256 and 256 × 1,536 with AVX2 alone.
    """
    if recipe.precision != "auto":
        return recipe.precision == "bf16"
    import torch  # late: a command that is told something wrong says so at once

    from pasta.engine.packing import onednn_packs

    if use_gpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return onednn_packs(torch.bfloat16)


def slow_start(recipe: OptimisationSection, num_rows: int, num_workers: int) -> str:
    """A warning line if a run of epochs over so many rows (or pairs) ends before its rate has risen; else empty."""
    if recipe.max_steps is not None:  # checked with the configuration
        return ""
    forwards = math.ceil(num_rows / (recipe.rows * num_workers))
    steps = math.ceil(recipe.epochs * max(math.ceil(forwards / recipe.accumulate), 1))
    if recipe.warmup_steps < steps:
        return ""
    return (
        f"optimisation.warmup_steps: {recipe.warmup_steps}, but the run has {steps} steps: the rate never reaches "
        "learning_rate; expected less"
    )


def trainer_arguments(
    recipe: OptimisationSection, schedule: ScheduleSection, context: RunContext, *, evaluates: bool
) -> dict[str, Any]:
    """Arguments that every trainer of TRL takes. Settings that would remove or rename columns are off."""
    deepspeed = deepspeed_config(recipe.deepspeed)
    if deepspeed is not None:
        compile_no_communication()
        import_no_compiler(deepspeed)
    return {
        "output_dir": str(context.work_dir / CHECKPOINTS),
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": "linear" if recipe.decay == "linear" else "constant_with_warmup",
        "warmup_steps": recipe.warmup_steps,
        "per_device_train_batch_size": recipe.rows,
        "per_device_eval_batch_size": recipe.rows,
        "gradient_accumulation_steps": recipe.accumulate,
        "max_steps": recipe.max_steps if recipe.max_steps is not None else -1,
        "num_train_epochs": recipe.epochs,
        "adam_beta1": recipe.betas[0],
        "adam_beta2": recipe.betas[1],
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.max_grad_norm,
        "bf16": uses_bfloat16(recipe, use_gpu=context.use_gpu),
        "fp16": False,
        "tf32": None,
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "deepspeed": deepspeed,
        "seed": recipe.seed,
        "use_cpu": not context.use_gpu,
        "logging_strategy": "steps" if schedule.log_steps else "no",
        "logging_steps": schedule.log_steps or 500,
        "logging_nan_inf_filter": False,  # a run that has diverged would tell a loss of 0
        "save_strategy": "steps" if schedule.save_steps else "no",
        "save_steps": schedule.save_steps or 500,
        "save_total_limit": 1,
        "eval_strategy": "steps" if schedule.eval_steps and evaluates else "no",
        "eval_steps": schedule.eval_steps or None,
        "include_num_input_tokens_seen": "non_padding",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": context.use_gpu,
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,
        "max_length": None,
        "ddp_find_unused_parameters": False,
    }


def deepspeed_config(path: Path | None) -> dict[str, Any] | None:
    """The DeepSpeed JSON as a dictionary. Raises UserError if it is missing or not JSON."""
    if path is None:
        return None
    loaded = read_json(path, key="optimisation.deepspeed", expected="a JSON object as in configs/deepspeed")
    if not isinstance(loaded, dict):
        raise UserError(f"optimisation.deepspeed: {path}: expected a JSON object")
    return loaded


def zero_stage(path: Path | None) -> int:
    """The ZeRO stage of a DeepSpeed file, 0 without one. Raises UserError as ``deepspeed_config`` does."""
    loaded = deepspeed_config(path) or {}
    section = loaded.get("zero_optimization", {})
    stage = section.get("stage", 0) if isinstance(section, dict) else None
    if not isinstance(stage, int) or stage not in range(4):
        raise _no_stage(path)
    return int(stage)


def _no_stage(path: Path | None) -> UserError:
    return UserError(
        f"optimisation.deepspeed: {path}: zero_optimization: expected a mapping with stage 0 to 3"
    )


def check_deepspeed(recipe: OptimisationSection, accumulate: int | None = None) -> int:
    """Return the ZeRO stage of the recipe's DeepSpeed file, 0 without one. ``accumulate`` is how many forwards make a
    step, if the recipe does not say it.

    Raises UserError as ``zero_stage`` does, and for a file under which the recipe is not followed, or no model is
    written at the end.
    """
    path, stage = recipe.deepspeed, zero_stage(recipe.deepspeed)
    loaded = deepspeed_config(path)
    if loaded is None:
        return stage
    if "zero_optimization" not in loaded:
        raise _no_stage(path)
    for key, (name, default) in _OF_RECIPE.items():
        ours = accumulate if name == "accumulate" and accumulate is not None else getattr(recipe, name)
        if key == "train_micro_batch_size_per_gpu" and key not in loaded and "train_batch_size" in loaded:
            continue  # the one follows from the other
        if loaded.get(key, default) not in ("auto", ours):
            given = f" {short_repr(loaded[key])}" if key in loaded else ""
            raise UserError(
                f'optimisation.deepspeed: {path}: {key}{given}: expected "auto", which is optimisation.{name} ({ours})'
            )
    bf16 = {"bf16": True, "fp32": False}.get(recipe.precision)  # auto: what the workers' machines have
    for key, ours in (("fp16", False), ("bf16", bf16)):
        section = loaded.get(key)
        given = section.get("enabled", "auto") if isinstance(section, dict) else "auto"
        if ours is not None and given not in ("auto", ours):
            raise UserError(
                f'optimisation.deepspeed: {path}: {key}.enabled {short_repr(given)}: expected "auto", which follows '
                f"from optimisation.precision ({recipe.precision})"
            )
    if stage == 3 and loaded["zero_optimization"].get(_GATHERS) is not True:
        raise UserError(
            f"optimisation.deepspeed: {path}: zero_optimization.{_GATHERS}: expected true; without it no model can be "
            "written at the end"
        )
    return stage
