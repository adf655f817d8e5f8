"""The configuration of a training run: every key of ``configs/sft/*.yaml`` and ``configs/models/*.yaml``."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pasta.bounds import check_at_most, check_not_negative, check_positive, check_unread
from pasta.data.sections import DataSection
from pasta.lang.positions import Scheme
from pasta.stages.workers import WorkersSection
from pasta.tracking import TrackingSection

#: More than any machine has room for.
_MOST_ROWS, _MOST_UNITS, MOST_HEADS = 1 << 16, 1 << 16, 64


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model from scratch: a transformers model type and the dimensions of its configuration class.

    ``vocab_size`` and the special token ids come from the tokenizer.
    """

    model_type: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelSection:
    """Where the weights come from: ``architecture`` (a YAML file: random weights) or ``init_from``.

    ``init_from`` is a directory or Hub name of any supported causal model.
    ``tokenizer`` is a directory or Hub name, or ``atlas``; by default the one that lies beside ``init_from``.
    ``attention`` is the attention implementation of transformers; Gemma 2 has ``eager`` alone. ``positions`` says where
    a parent goes on after a promise (pasta/lang/positions.py); it is stored with the model, and by default what
    ``init_from`` has.
    """

    architecture: Path | None = None
    init_from: str | None = None
    tokenizer: str | None = None
    attention: Literal["eager", "sdpa"] = "sdpa"
    save_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    positions: Scheme | None = None

    def __post_init__(self) -> None:
        if (self.architecture is None) == (self.init_from is None):
            raise ValueError(
                "expected exactly one of architecture (a YAML file) and init_from (a model directory)"
            )
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("a model from scratch needs a tokenizer: atlas, or a directory")


@dataclass(frozen=True, slots=True)
class OptimisationSection:
    """The recipe. A step is ``rows`` packed rows a worker times ``accumulate``; the rate falls linearly to 0, or
    stays (``decay: none``) for a later run to take down.

    A run goes ``epochs`` times over the data (once by default), or ends after ``max_steps``, however often that is.
    ``deepspeed`` is a DeepSpeed JSON file; without one, workers train data-parallel by torch alone. ``precision: auto``
    is ``bf16`` where the worker's machine has instructions for it, else ``fp32``.
    """

    learning_rate: float
    rows: int
    accumulate: int = 1
    max_steps: int | None = None
    epochs: float = 1.0
    warmup_steps: int = 0
    decay: Literal["linear", "none"] = "linear"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False
    deepspeed: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate", "rows", "accumulate", "max_steps", "epochs")
        check_at_most(self, rows=_MOST_ROWS, accumulate=_MOST_ROWS)
        check_not_negative(self, "warmup_steps", "weight_decay", "max_grad_norm")
        if self.max_steps is not None:
            check_unread(self, "with max_steps, which says when the run ends; expected one of them", "epochs")
            if self.warmup_steps >= self.max_steps:
                raise ValueError(
                    f"warmup_steps {self.warmup_steps}: expected less than max_steps ({self.max_steps}), or the rate "
                    "never reaches learning_rate"
                )
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas {list(self.betas)}: expected two numbers from 0 to below 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed {self.seed}: expected an integer from 0 to 4294967295")


@dataclass(frozen=True, slots=True)
class ScheduleSection:
    """How often, in steps, progress is reported, a checkpoint is kept and held-out loss is taken (0: never).

    Progress and checkpoints are due after the last step too. The last ``keep_checkpoints`` of them stay, one at least;
    ``save_steps: 0`` makes none. All but ``eval_steps`` may be changed in the middle of a run, which goes on, and after
    its end, which it does not undo.
    """

    log_steps: int = 10
    save_steps: int = 200
    eval_steps: int = 0
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        check_not_negative(self, "log_steps", "save_steps", "eval_steps")
        check_positive(self, "keep_checkpoints")
        if not self.save_steps:
            check_unread(self, "with save_steps: 0", "keep_checkpoints")

    def check_evaluates(self, key: str, held_out: int) -> None:
        """Raise ValueError if evaluations are asked for and no data is held out for them (``key`` sets how much)."""
        if self.eval_steps and not held_out:
            raise ValueError(f"schedule.eval_steps {self.eval_steps}: has no effect with {key}: 0")


@dataclass(frozen=True, slots=True)
class LoraSection:
    """Adapters of ``rank`` on the linear layers named in ``targets``, their product scaled by ``alpha``/``rank``.

    The finished model is whole, adapters merged, so that anything can load it; ``keep_adapter`` puts the adapter
    beside it, in ``adapter/``. Of a base with images it is for the part that writes text, whose layers it names.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: Literal["all-linear"] | list[str] = "all-linear"
    keep_adapter: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "rank", "alpha")
        check_at_most(self, rank=_MOST_UNITS)
        if not self.targets:
            raise ValueError("targets []: expected all-linear, or the names of linear layers")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout {self.dropout}: expected a share from 0 to below 1")


@dataclass(frozen=True, slots=True)
class HeadsSection:
    """Draft heads: ``depth`` of them, each with ``width`` units between the model's states and its output layer. At
    most so many tokens are ``guessed``, those that the model says most often; 0: all."""

    depth: int = 4
    width: int = 256
    guessed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "depth", "width")
        check_at_most(self, depth=MOST_HEADS, width=_MOST_UNITS)
        check_not_negative(self, "guessed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The keys of every training run. ``output_dir`` gets the finished model, ``run_dir`` everything else of the run.

    ``checkpoints`` is a URL that fsspec knows, if they are not to be kept in ``run_dir``. With ``lora``, adapters are
    trained instead of all weights, and merged at the end.
    """

    name: str
    output_dir: Path
    model: ModelSection
    optimisation: OptimisationSection
    run_dir: Path
    checkpoints: str | None = None
    schedule: ScheduleSection = ScheduleSection()
    workers: WorkersSection = field(default_factory=WorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)
    lora: LoraSection | None = None

    def __post_init__(self) -> None:
        if self.checkpoints is not None and not re.match(r"[a-z][a-z0-9+.-]*://[^/]*/?.", self.checkpoints):
            raise ValueError(
                f"checkpoints {self.checkpoints!r}: expected a URL such as s3://bucket/path (they are in run_dir by "
                "default)"
            )

    def check_goes_on_from(self, expected: str) -> None:
        """Raise ValueError unless the run continues from a trained model, which ``expected`` describes."""
        if self.model.init_from is None:
            raise ValueError(f"model.init_from: expected {expected}")
        if self.model.tokenizer is not None:
            raise ValueError("model.tokenizer: has no place here; the model's own tokenizer is used")
        self.check_is_not("model.init_from", self.model.init_from)

    def check_no_dropout(self) -> None:
        """Raise ValueError if adapters are given a dropout, which TRL's trainers of log-probabilities switch off."""
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                f"lora.dropout {self.lora.dropout}: has no effect: log-probabilities are taken without; expected 0"
            )

    def check_is_not(self, key: str, model: str | None) -> None:
        """Raise ValueError if ``output_dir`` is the directory of this model, which ``key`` names, by whatever path."""
        if model is not None and os.path.realpath(model) == os.path.realpath(self.output_dir):
            raise ValueError(f"output_dir: {self.output_dir}: is {key}; name another directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig(TrainingConfig):
    """One supervised fine-tuning run.

    With ``lora`` the control tokens' rows are trained too where they are new. With ``draft_heads`` the model stays as
    it is and gets heads, which are put beside it: ``output_dir`` is ``model.init_from`` then.
    """

    data: DataSection
    run_dir: Path = Path("runs/sft")
    draft_heads: HeadsSection | None = None

    def __post_init__(self) -> None:
        TrainingConfig.__post_init__(self)
        if self.model.positions is not None and (self.draft_heads or self.data.mode == "sequential"):
            who = (
                "draft heads leave the model"
                if self.draft_heads
                else "data.mode 'sequential' leaves positions"
            )
            raise ValueError(f"model.positions {self.model.positions!r}: expected none; {who} as it is")
        self.schedule.check_evaluates("data.eval_documents", self.data.eval_documents)
        if self.draft_heads is None:
            self.check_is_not("model.init_from", self.model.init_from)
        else:
            check_unread(self.model, "with draft_heads, which leave the model as it is", "save_dtype")
            if self.lora is not None:
                raise ValueError(
                    "lora: draft heads are trained alone; expected only one of lora and draft_heads"
                )
            if self.model.init_from is None or Path(self.model.init_from) != self.output_dir:
                raise ValueError(
                    f"output_dir {str(self.output_dir)!r}: draft heads lie beside their model; expected "
                    f"model.init_from ({self.model.init_from})"
                )
            if self.data.mode == "both":
                raise ValueError(
                    "data.mode 'both': draft heads are for one kind of answer; expected pasta or sequential"
                )
            if self.data.eval_answers:
                raise ValueError(
                    f"data.eval_answers {self.data.eval_answers}: draft heads leave the model's answers as they are; "
                    "expected 0"
                )
        if self.lora is not None and self.model.init_from is None:
            raise ValueError("lora: a model from scratch has nothing to adapt; expected model.init_from")
