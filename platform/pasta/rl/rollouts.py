"""The interface of samplers: they get prompts and, from time to time, new weights, and return answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pasta.stages.records import Record

#: Tensors by their names in the checkpoint; nothing here imports torch.
Weights = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt of a batch, by the digest and the token ids of its messages."""

    id: str
    prompt_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The answers of a batch: ``candidates[i]`` are those to its i-th group, as sample records have them.

    ``began`` and ``ended`` are the clock (``time.perf_counter``) of whoever asked; ``version`` counts the batches that
    the sampling weights had learnt from. ``lost`` actors died, and what they had was sampled again.
    """

    candidates: list[list[Record]]
    version: int
    began: float = 0.0
    ended: float = 0.0
    lost: int = 0


class Rollouts(Protocol):
    """A source of answers: actors of a cluster. One worker of a run has it and sends its results to the others."""

    def publish(self, weights: Weights, version: int) -> None:
        """Sample with ``weights`` from now on."""

    def sample(self, batch: int, groups: Sequence[Group]) -> Rollout:
        """The answers of batch number ``batch``. They depend on the weights, the batch and the prompts alone."""
