"""The interface of all annotators, and the simplest proposals: plain answers, and the atlas's ground truth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pasta.data.atlas.tasks import AtlasTask, task_for_prompt
from pasta.data.instructions import Instruction
from pasta.data.replies import Reply, Tokens
from pasta.lang import Document, Text, to_text
from pasta.stages.records import RecordFile


@dataclass(frozen=True, slots=True)
class TeacherUsage:
    """The cost of proposals: requests sent, tokens read and written by a model, in its own tokenizer."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, reply: Reply) -> "TeacherUsage":
        """The cost of a reply, and of the tries before it that could not be read."""
        tokens = Tokens(reply.prompt_tokens, reply.completion_tokens) + reply.wasted
        return cls(1, tokens.prompt, tokens.completion)

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

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Proposal":
        """The inverse of ``asdict``."""
        refused = tuple(RefusedAnnotation(**each) for each in values["refused"])
        usage, judged = (TeacherUsage(**values[name]) for name in ("usage", "judged"))
        return cls(**{**values, "usage": usage, "refused": refused, "judged": judged})


Deliver = Callable[[Instruction, Proposal], None]


class Annotator(Protocol):
    """Marks which parts of answers are independent. The caller validates every proposal."""

    @property
    def is_costly(self) -> bool:
        """Whether proposals cost money, so that each is written to disk before its shard is finished."""

    def annotate(
        self, records: Sequence[Instruction], deliver: Deliver, journal: RecordFile | None = None
    ) -> None:
        """Call ``deliver`` once for each record, in any order, as soon as its proposal is there. A costly annotator
        keeps in ``journal`` what it has paid for until then. Raises UserError if no further record can be annotated."""


class FreeAnnotator:
    """Annotates one record after another by ``propose``, which costs nothing."""

    is_costly = False

    def __init__(self, propose: Callable[[Instruction], Proposal]) -> None:
        self._propose = propose

    def annotate(
        self, records: Sequence[Instruction], deliver: Deliver, journal: RecordFile | None = None
    ) -> None:
        """Deliver a proposal for each record."""
        for record in records:
            deliver(record, self._propose(record))


def propose_plain(record: Instruction) -> Proposal:
    """The answer as it stands, without chunks: for records whose answers are to be learned unchanged."""
    return Proposal(to_text(Document((Text(record.answer),))))


def propose_truth(record: Instruction) -> Proposal:
    """The ground truth of an answer of the atlas, whose plan tells which parts are independent. Rejects others."""
    task = truth_of(record)
    return task if isinstance(task, Proposal) else Proposal(to_text(task.document))


def truth_of(record: Instruction) -> AtlasTask | Proposal:
    """The atlas's task that a record answers, or a proposal that rejects a record which is none."""
    task = task_for_prompt(record.messages[-1]["content"])
    if task is None:
        return Proposal(None, "no truth", "the prompt is none of the atlas")
    if task.answer != record.answer:
        return Proposal(None, "no truth", "the answer is not the one that the atlas gives to this prompt")
    return task
