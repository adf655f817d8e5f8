"""The configuration of an annotation run: the keys of ``configs/annotate/*.yaml`` that the library reads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pasta.bounds import check_positive, check_unread
from pasta.data.annotate.annotator import Annotator, FreeAnnotator, Proposal, propose_plain, propose_truth
from pasta.data.annotate.apar import propose_apar
from pasta.data.annotate.imperfect import ImperfectSection, propose_imperfect
from pasta.data.annotate.syntactic import SyntacticSection, propose_syntactic
from pasta.data.annotate.teacher import NO_KEYS, Keys, Teacher, TeacherSection
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.atlas.tasks import task_for_prompt
from pasta.data.atlas_keys import ATLAS
from pasta.data.instructions import Instruction
from pasta.data.skeletons import TRAINED, SkeletonPrompts
from pasta.data.sot import to_requests
from pasta.data.sources import Shard, SourceSection, read_source_shard
from pasta.errors import UserError
from pasta.files import shown


@dataclass(frozen=True, slots=True)
class AnnotationSections:
    """The sections that decide the output. ``annotator`` is ``teacher`` (an LLM behind an OpenAI-compatible endpoint),
    ``syntactic`` (lists and paragraphs by pattern), ``apar`` (APAR's own, stricter patterns), ``atlas`` (ground truth,
    for atlas tasks) or ``imperfect`` (the same tasks, by looks). With ``sot`` nothing is annotated: each record becomes
    the plain requests of Skeleton-of-Thought, in the words of ``skeletons``; ``routed`` ones teach the paper's router
    too, from the atlas' ground truth.

    ``tokenizer`` counts lengths and estimates: ``atlas``, a directory, or a Hub name; it should be the one of the model
    that will be trained. Work is cut into shards of ``shard_records``; a rerun skips finished shards.
    """

    source: SourceSection
    annotator: Literal["teacher", "syntactic", "apar", "atlas", "imperfect", "sot"]
    teacher: TeacherSection | None = None
    syntactic: SyntacticSection = field(default_factory=SyntacticSection)
    imperfect: ImperfectSection = field(default_factory=ImperfectSection)
    skeletons: SkeletonPrompts = TRAINED
    routed: bool = False
    checks: ChecksSection = field(default_factory=ChecksSection)
    tokenizer: str = ATLAS
    shard_records: int = 500

    def __post_init__(self) -> None:
        check_positive(self, "shard_records")
        if (self.annotator == "teacher") != (self.teacher is not None):
            raise ValueError(
                "teacher: expected the section that names endpoint and model with annotator: teacher only"
            )
        if self.annotator != "syntactic":
            check_unread(self, "without annotator: syntactic", "syntactic")
        if self.annotator != "imperfect":
            check_unread(self, "without annotator: imperfect", "imperfect")
        if self.annotator != "sot":
            check_unread(self, "without annotator: sot", "routed", "skeletons")
        else:
            check_unread(self, "with annotator: sot, which annotates nothing", "checks")
        if self.annotator in ("atlas", "imperfect") and (self.source.echo or self.source.talk):
            raise ValueError(
                "source.echo, source.talk: exercises and talk have no ground truth for annotator: "
                f"{self.annotator}"
            )

    def rewrite(self, record: Instruction) -> Sequence[Instruction]:
        """The records to annotate that are made of one record: with ``sot`` its requests, else the record itself."""
        return (
            to_requests(record, self.skeletons, routed=self.routed) if self.annotator == "sot" else [record]
        )

    def identity(self) -> dict[str, Any]:
        """What the output depends on, without the teacher's rate limits and prices."""
        by_kind: dict[str, Any] = {
            "teacher": self.teacher.identity() if self.teacher else None,
            "syntactic": self.syntactic,
            "apar": None,
            "atlas": None,
            "imperfect": self.imperfect,
            "sot": {"words": self.skeletons, "routed": self.routed},
        }
        return {
            "source": self.source,
            "annotator": {self.annotator: by_kind[self.annotator]},
            "checks": self.checks,
            "tokenizer": self.tokenizer,
            "shard_records": self.shard_records,
        }


def check_truth(sections: AnnotationSections, shards: Iterable[Shard]) -> None:
    """Raise UserError, naming the key, where an annotator, or ``routed``, reads the atlas' truth and no record of the
    ``shards`` is a task of the atlas. Reads the records up to the first that is one."""
    if sections.annotator in ("atlas", "imperfect"):
        key = f"data.annotator {sections.annotator}"
    elif sections.routed:
        key = "data.routed"
    else:
        return
    records = (record for shard in shards for record in read_source_shard(shard, sections.source))
    if not any(
        isinstance(each, Instruction) and task_for_prompt(each.messages[-1]["content"]) for each in records
    ):
        path = shown(sections.source.path)
        raise UserError(
            f"{key}: expected the atlas, whose truth it reads; no record of {path} is one of its tasks"
        )


def make_annotator(
    sections: AnnotationSections, validator: Validator, *, num_workers: int = 1, keys: Keys = NO_KEYS
) -> Annotator:
    """The annotator of one of ``num_workers`` workers, which share the teacher's limits evenly."""
    if sections.teacher is not None:
        return Teacher(sections.teacher, validator, share=1 / num_workers, keys=keys)
    free: dict[str, Callable[[Instruction], Proposal]] = {
        "syntactic": partial(propose_syntactic, options=sections.syntactic),
        "apar": propose_apar,
        "atlas": propose_truth,
        "imperfect": partial(propose_imperfect, options=sections.imperfect),
        "sot": propose_plain,
    }
    return FreeAnnotator(free[sections.annotator])
