"""The ``judge`` section of a configuration."""

from dataclasses import dataclass
from typing import Any, Literal

from pasta.bounds import check_at_most, check_not_negative, check_positive, check_within
from pasta.config import to_dict
from pasta.data.endpoint import TEMPERATURES, EndpointSection
from pasta.engine.section import check_device, check_dtype

Kind = Literal["grader", "teacher", "reward"]


@dataclass(frozen=True, slots=True)
class TeacherJudgeSection:
    """The pairwise judge. ``max_tokens`` bounds its verdict; one out of format is asked for again ``format_retries``
    times. ``logprobs: auto`` weighs verdicts by token probabilities unless the endpoint refuses to give them."""

    endpoint: EndpointSection
    max_tokens: int = 8
    temperature: float = 0.0
    logprobs: Literal["auto", "never"] = "auto"
    format_retries: int = 2

    def __post_init__(self) -> None:
        check_positive(self, "max_tokens")
        check_within(self, temperature=TEMPERATURES)
        check_not_negative(self, "format_retries")


@dataclass(frozen=True, slots=True)
class RewardModelSection:
    """A sequence classifier with one output and a chat template. ``max_length`` is the longest prompt with answer, in
    its tokens (a longer one is invalid, never cut); by default what the model has positions for."""

    model: str
    dtype: str = "bfloat16"
    device: str = "auto"
    batch_size: int = 8
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        check_device(self.device)
        check_positive(self, "batch_size", "max_length")
        check_at_most(self, batch_size=1 << 16)


@dataclass(frozen=True, slots=True)
class JudgeSection:
    """``grader`` (atlas prompts, exact), ``teacher`` (an LLM compares with the twin's answer), or ``reward``."""

    kind: Kind
    teacher: TeacherJudgeSection | None = None
    reward: RewardModelSection | None = None

    def __post_init__(self) -> None:
        for name in ("teacher", "reward"):
            if (self.kind == name) != (getattr(self, name) is not None):
                raise ValueError(f"{name}: expected a section of this name with kind: {name}, and only then")

    def identity(self) -> dict[str, Any]:
        """What verdicts depend on: without an endpoint's address, concurrency and prices."""
        values: dict[str, Any] = to_dict(self)
        if self.teacher is not None:
            endpoint = values["teacher"]["endpoint"]
            values["teacher"]["endpoint"] = {key: endpoint[key] for key in ("model", "extra_body")}
        if self.reward is not None:
            del values["reward"]["batch_size"], values["reward"]["device"]
        return values
