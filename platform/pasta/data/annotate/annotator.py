"""The interface of all annotators, and the two that need no model: plain answers, and the atlas's ground truth."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pasta.data.atlas.tasks import AtlasTask, task_for_prompt
from pasta.data.instructions import Instruction
from pasta.lang import Document, Text, to_text


@dataclass(frozen=True, slots=True)
class TeacherUsage:
    """The cost of proposals: requests sent, tokens read and written by a model, in its own tokenizer."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "TeacherUsage") -> "TeacherUsage":
        return TeacherUsage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


NO_USAGE = TeacherUsage()


@dataclass(frozen=True, slots=True)
class RefusedAnnotation:
    """An annotation that failed a check, if there was one, and why: ``reason``, a short word to count by, and the
    details."""

    annotated: str | None
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """An annotator's proposal for one record: the annotated answer in text form, or the reason why there is none.

    ``reason`` is a short word that rejects are counted by, ``detail`` explains it. ``refused`` are annotations that the
    annotator itself refused before it proposed this one; ``judged`` is what its judge cost.
    """

    annotated: str | None
    reason: str = ""
    detail: str = ""
    usage: TeacherUsage = NO_USAGE
    refused: tuple[RefusedAnnotation, ...] = ()
    judged: TeacherUsage = NO_USAGE

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values; ``Proposal.of`` reads them back."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Proposal":
        """The inverse of ``to_dict``."""
        refused = tuple(RefusedAnnotation(**each) for each in values["refused"])
        usage, judged = (TeacherUsage(**values[name]) for name in ("usage", "judged"))
        return cls(**{**values, "usage": usage, "refused": refused, "judged": judged})


Deliver = Callable[[Instruction, Proposal], None]


class Annotator(Protocol):
    """Marks which parts of answers are independent. The caller validates every proposal."""

    @property
    def is_costly(self) -> bool:
        """Whether proposals cost money, so that each is written to disk before its shard is finished."""

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Call ``deliver`` once for each record, in any order, as soon as its proposal is there. Raises UserError if no
        further record can be annotated."""


class PlainAnnotator:
    """Proposes every answer as it stands, without chunks: for records whose answers are to be learned unchanged."""

    is_costly = False

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Deliver a proposal for each record."""
        for record in records:
            deliver(record, Proposal(to_text(Document((Text(record.answer),)))))


class AtlasAnnotator:
    """Annotates the atlas's own answers by ground truth: the plan of each answer tells which parts are independent."""

    is_costly = False

    def annotate(self, records: Sequence[Instruction], deliver: Deliver) -> None:
        """Deliver the true annotation of each record, or reject a record that is not the atlas's."""
        for record in records:
            task = truth_of(record)
            deliver(record, task if isinstance(task, Proposal) else Proposal(to_text(task.document)))


def truth_of(record: Instruction) -> AtlasTask | Proposal:
    """The atlas's task that a record answers, or a proposal that rejects a record which is none."""
    task = task_for_prompt(record.messages[-1]["content"])
    if task is None:
        return Proposal(None, "no truth", "the prompt is none of the atlas")
    if task.answer != record.answer:
        return Proposal(None, "no truth", "the answer is not the one that the atlas gives to this prompt")
    return task
