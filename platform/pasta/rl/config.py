"""The configuration of a run of reinforcement learning: every key of ``configs/rl/*.yaml``."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pasta.bounds import check_at_most, check_not_negative, check_positive
from pasta.candidates.config import SamplingSection
from pasta.candidates.scoring import Speed
from pasta.data.prompts import PromptsSection
from pasta.engine.section import DTYPES, EngineSection, answer_limits, check_slot
from pasta.interpreter import Limits
from pasta.judges.config import JudgeSection
from pasta.stages.workers import WorkersSection
from pasta.training.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class RolloutSection:
    """Who samples, and when.

    Each actor holds an engine, which gets the policy's weights after every batch that has trained them. A batch is
    ``prompts`` prompts with ``sampling.candidates`` answers each. ``staleness`` 0: a batch is sampled from the very
    weights that it then trains; training waits for it. ``staleness`` 1: the next batch is sampled while this one
    trains, from weights one batch older, as in AReaL (arXiv 2505.24298) and TRL's asynchronous trainer; importance
    ratios are then taken to the log-probabilities of the sampling weights.
    """

    prompts: int = 16
    staleness: int = 0
    workers: WorkersSection = field(default_factory=lambda: WorkersSection(num_workers=2))

    def __post_init__(self) -> None:
        check_positive(self, "prompts")
        check_at_most(self, prompts=1 << 16)
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness {self.staleness}: expected 0 or 1")


@dataclass(frozen=True, slots=True)
class RewardSection:
    """The reward of an answer: (speed + λ · quality) / (1 + λ); ``pasta.rl.rewards`` has the details.

    ``quality_weight`` is λ, ``inf`` for quality before speed, and ``speed`` what counts as such, as in
    ``configs/score/*.yaml``. If an answer has less than ``min_quality``, its speed does not count: ThreadWeaver (arXiv
    2512.07843) pays for acceleration only when the answer is right.
    """

    quality_weight: float | Literal["inf"]
    speed: Speed = "speedup"
    min_quality: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"quality_weight {self.quality_weight}: expected 0 or more, or inf")
        if not 0.0 <= self.min_quality <= 1.0:
            raise ValueError(f"min_quality {self.min_quality}: expected a quality from 0 to 1")

    @property
    def weight(self) -> float:
        """λ as a number."""
        return float(self.quality_weight)

    @property
    def speed_alone_decides(self) -> bool:
        """Whether speed alone decides among equally good answers: λ = inf."""
        return math.isinf(self.weight)


@dataclass(frozen=True, slots=True)
class GrpoSection:
    """The objective: GRPO (Shao et al. 2024, arXiv 2402.03300), with importance ratios by token.

    ``loss`` says what a sum over tokens is divided by. ``dr_grpo``: one constant, ``limits.max_tokens``, so that no
    token counts more in a short answer (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783). ``grpo``: each answer by its own
    length, as first published. ``bnpo``: all tokens of a forward by their number.

    ``divide_by_spread`` divides advantages by their standard deviation in the group, as first published. It is off:
    where all answers are right, speed alone would be scaled up to the size of right and wrong (ThreadWeaver, arXiv
    2512.07843; Dr. GRPO).

    Ratios are clipped to 1 − ``epsilon`` … 1 + ``epsilon_high``, by default ``epsilon`` (apart: DAPO, arXiv
    2503.14476). ``kl_weight`` is β, the weight of the divergence from ``model.init_from`` (0: no reference is kept); it
    is multiplied by the ratio, which makes its gradient unbiased (DeepSeek-V3.2, arXiv 2512.02556). The optimiser takes
    ``updates`` steps on a batch of answers, each on its share of the batch.

    With ``mask_cut`` nothing is learned from the tokens of an answer that was cut (overlong filtering: DAPO): there are
    many, most of them noise. Its reward of 0 still counts in its group's mean.
    """

    loss: Literal["dr_grpo", "grpo", "bnpo"] = "dr_grpo"
    divide_by_spread: bool = False
    epsilon: float = 0.2
    epsilon_high: float | None = None
    kl_weight: float = 0.0
    updates: int = 1
    mask_cut: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "epsilon_high", "updates")
        check_not_negative(self, "kl_weight")
        if self.epsilon >= 1:
            raise ValueError(f"epsilon {self.epsilon}: expected a number below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlConfig(TrainingConfig):
    """One run of reinforcement learning.

    ``twin`` answers every prompt once, sequentially and greedily, which speedups and judges compare with; by default it
    is ``model.init_from`` with promises masked out. In ``optimisation``, ``rows`` counts answers a forward of a worker;
    how many forwards make a step follows from the size of a batch. ``max_steps`` counts steps of the optimiser.
    ``workers`` train, ``rollout.workers`` sample. With ``lora``, adapters are merged for every batch of answers too.
    """

    judge: JudgeSection
    reward: RewardSection
    twin: str | None = None
    prompts: PromptsSection = field(default_factory=lambda: PromptsSection("atlas", 512))
    sampling: SamplingSection = field(default_factory=lambda: SamplingSection(candidates=8))
    limits: Limits = field(default_factory=answer_limits)
    engine: EngineSection = field(default_factory=EngineSection)
    rollout: RolloutSection = field(default_factory=RolloutSection)
    objective: GrpoSection = field(default_factory=GrpoSection)
    run_dir: Path = Path("runs/rl")

    def __post_init__(self) -> None:
        TrainingConfig.__post_init__(self)
        self._check_model()
        self.check_no_dropout()
        self._check_steps()
        sampling = self.sampling
        if sampling.top_k or sampling.top_p != 1.0 or sampling.promise_bias:
            raise ValueError(
                f"sampling: top_k {sampling.top_k}, top_p {sampling.top_p:g}, promise_bias {sampling.promise_bias:g}: "
                "expected 0, 1 and 0; answers of another distribution than the policy's have other ratios"
            )
        self._check_threshold()
        check_slot(self.engine.slot_tokens, self.limits.max_tokens)
        if self.engine.dtype not in DTYPES:
            raise ValueError(
                f"engine.dtype {self.engine.dtype!r}: expected one of {', '.join(DTYPES)}; answers must come from the "
                "weights that learn from them"
            )

    def _check_model(self) -> None:
        self.check_goes_on_from("a model that jobs.sft has trained")
        self.check_is_not("twin", self.twin)
        if self.model.positions is not None:
            raise ValueError(
                f"model.positions {self.model.positions!r}: expected none; the engines sample from the model as it is"
            )

    def _check_threshold(self) -> None:
        reward = self.reward
        if self.judge.kind == "reward" and reward.min_quality == 1.0 and not reward.speed_alone_decides:
            raise ValueError(
                "reward.min_quality 1.0: expected below 1 with judge.kind reward, whose quality is the probability "
                "that an answer is preferred to the twin's: none has 1, and speed would never count"
            )

    def _check_steps(self) -> None:
        recipe, schedule, updates = self.optimisation, self.schedule, self.objective.updates
        if recipe.max_steps is None:
            raise ValueError("optimisation.max_steps: expected the number of steps")
        if recipe.accumulate != 1:
            raise ValueError(
                f"optimisation.accumulate {recipe.accumulate}: expected 1; it follows from rollout.prompts, "
                "sampling.candidates and rows"
            )
        if recipe.compile:
            raise ValueError("optimisation.compile: expected false")
        if schedule.eval_steps:
            raise ValueError(f"schedule.eval_steps {schedule.eval_steps}: expected 0; nothing is held out")
        for key, steps in (
            ("optimisation.max_steps", recipe.max_steps),
            ("schedule.save_steps", schedule.save_steps),
        ):
            if steps % updates:
                raise ValueError(f"{key} {steps}: expected a multiple of objective.updates ({updates})")
        share = self.workers.num_workers * recipe.rows * updates
        if self.batch_answers % share:
            raise ValueError(
                f"rollout.prompts {self.rollout.prompts}: {self.batch_answers} answers a batch; expected a multiple of "
                f"workers.num_workers x optimisation.rows x objective.updates = {share}"
            )

    @property
    def batch_answers(self) -> int:
        """Answers in a batch, over all workers."""
        return self.rollout.prompts * self.sampling.candidates

    @property
    def num_batches(self) -> int:
        """How many batches the run samples."""
        assert self.optimisation.max_steps is not None, "checked on construction"
        return self.optimisation.max_steps // self.objective.updates

    @property
    def accumulate(self) -> int:
        """Forwards of a worker that make one step of the optimiser."""
        return self.batch_answers // (
            self.workers.num_workers * self.optimisation.rows * self.objective.updates
        )
