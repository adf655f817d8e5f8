"""The one interface of all annotators."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pasta.data.instructions import Instruction


@dataclass(frozen=True, slots=True)
class Usage:
    """What proposals cost: requests sent, tokens read and written by a model, in its own tokenizer."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Proposal:
    """An annotator's word on one record: the annotated answer in text form, or else why there is none.

    ``reason`` is a short word that rejects are counted by, ``detail`` the whole story.
    """

    annotated: str | None
    reason: str = ""
    detail: str = ""
    usage: Usage = NO_USAGE

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values; ``Proposal.of`` reads them back."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Proposal":
        """From what ``to_dict`` gave."""
        return cls(**{**values, "usage": Usage(**values["usage"])})


Deliver = Callable[[Instruction, Proposal], None]


class Annotator(Protocol):
    """Says which parts of answers are independent. Its word is validated by the caller, never trusted."""

    @property
    def is_costly(self) -> bool:
        """Whether a proposal is worth writing down before its shard is finished."""

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Call ``deliver`` once for each record, in any order, as soon as its proposal is there.

        Raises UserError if it makes no sense to go on with other records.
        """
