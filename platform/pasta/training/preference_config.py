"""The configuration of a preference run: every key of ``configs/preference/*.yaml``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pasta.bounds import check_at_most, check_positive, check_unread
from pasta.data.sections import PairsSection
from pasta.training.config import TrainingConfig

#: As many as ``sampling.candidates`` may be.
_MOST_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class ObjectiveSection:
    """The loss and its reference model.

    ``bonbon``: α·(−log p(y⁺)) + (1−α)·(Δ − 1/(2β))² with Δ the difference of the summed log-ratios, β that of the best
    and worst of ``num_samples`` samples unless ``beta`` is given (Gui et al. 2024, arXiv 2406.00832). ``dpo``
    and ``ipo`` are TRL's, the latter with log-ratios divided by length; their ``beta`` is 0.1 unless given, and
    ``alpha`` and ``num_samples`` do not apply to them.
    ``reference`` is a model directory or Hub name, by default the model that training starts from. Its
    log-probabilities are taken at every step (``live``), or once before the first (``precomputed``), which frees
    the reference's memory; those are kept beside the data as they are computed.
    """

    loss: Literal["bonbon", "dpo", "ipo"] = "bonbon"
    alpha: float = 0.005
    num_samples: int = 10
    beta: float | None = None
    reference: str | None = None
    reference_log_probs: Literal["live", "precomputed"] = "live"

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha {self.alpha}: expected a share from 0 to 1")
        if self.num_samples < 2:
            raise ValueError(f"num_samples {self.num_samples}: expected at least 2, the best and the worst")
        check_at_most(self, num_samples=_MOST_SAMPLES)
        check_positive(self, "beta")
        if self.loss != "bonbon":
            check_unread(self, f"with loss: {self.loss}", "alpha", "num_samples")
        elif self.beta is not None:
            check_unread(self, "with beta, which follows from it by default", "num_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig(TrainingConfig):
    """One preference run. In ``optimisation``, ``rows`` counts pairs a worker."""

    data: PairsSection
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    run_dir: Path = Path("runs/preference")

    def __post_init__(self) -> None:
        TrainingConfig.__post_init__(self)
        self.schedule.check_evaluates("data.eval_pairs", self.data.eval_pairs)
        self.check_goes_on_from("the model that wrote the answers")
        self.check_no_dropout()
