"""The configuration of a sample stage: every key of ``configs/sample/*.yaml``."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from pasta.bounds import check_at_most, check_positive
from pasta.data.prompts import PromptsSection
from pasta.engine import SamplingParams
from pasta.engine.section import EngineSection, answer_limits, check_slot
from pasta.interpreter import Limits
from pasta.stages.workers import DecodingWorkersSection
from pasta.tracking import TrackingSection


@dataclass(frozen=True, slots=True)
class SamplingSection:
    """How candidates are drawn. The paper samples 10 a prompt. ``promise_bias`` is added to the logit of a promise."""

    candidates: int = 10
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    promise_bias: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.candidates < 2:
            raise ValueError(f"candidates {self.candidates}: expected at least 2, to choose between")
        check_at_most(self, candidates=10_000)
        if self.temperature == 0:
            raise ValueError("temperature 0: every candidate would be the same; expected a number above 0")
        self.params("", 0)

    def params(self, prompt_id: str, number: int) -> SamplingParams:
        """Parameters of one candidate; its seed follows from the prompt and its number, not from any order."""
        digest = hashlib.blake2b(f"{self.seed}|{prompt_id}|{number}".encode(), digest_size=7).digest()
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=int.from_bytes(digest, "little"),
            promise_bias=self.promise_bias,
        )


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """One sample stage: every key of ``configs/sample/*.yaml``.

    ``model`` writes the candidates; ``twin`` the baseline, sequentially and greedily (by default ``model`` itself with
    promises masked out). Both are directories or Hub names. A shard is ``shard_prompts`` prompts, which are written
    together.
    """

    name: str
    output_dir: Path
    model: str
    twin: str | None = None
    prompts: PromptsSection = field(default_factory=lambda: PromptsSection("atlas", 100))
    sampling: SamplingSection = SamplingSection()
    limits: Limits = field(default_factory=answer_limits)
    engine: EngineSection = field(default_factory=EngineSection)
    shard_prompts: int = 32
    run_dir: Path = Path("runs/sample")
    workers: DecodingWorkersSection = field(default_factory=DecodingWorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)

    def __post_init__(self) -> None:
        check_positive(self, "shard_prompts")
        check_slot(self.engine.slot_tokens, self.limits.max_tokens)
