"""Training data for Skeleton-of-Thought: plain requests and their answers, made from a prompt and its answer.

A model that follows instructions is prompted, as in the paper. A small one that follows none is trained to it, with the
very requests that ``pasta.evaluation.methods.sot`` sends: one for a skeleton, then one for the text of each point. What
the points are follows from the layout as a reader sees it: items of a list, paragraphs, sections under headings. An
answer without a layout to split, such as a single paragraph, has a skeleton of one point, upon which decoding asks for
the answer as it would without Skeleton-of-Thought.

The points of an answer join to the same answer. All answers of the atlas, joined from their own points, are graded like
the answers themselves: 1.00 of all statements (tests/data/test_sot.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pasta.data.annotate.marks import opening
from pasta.data.annotate.syntactic import is_lead_in, part_starts
from pasta.data.atlas import task_for_prompt
from pasta.data.instructions import Instruction
from pasta.data.skeletons import MIN_POINTS, SkeletonPrompts, write_skeleton

#: The paper asks for three to five words a point.
POINT_WORDS = 5
#: An answer is planned only if it is so many times as long as its skeleton, in characters; else writing it is faster.
_WORTH = 2


@dataclass(frozen=True, slots=True)
class SkeletonPoint:
    """A few words for the skeleton, and the text they stand for, with the line break and list mark before it."""

    label: str
    text: str


def split_points(answer: str) -> list[SkeletonPoint]:
    """The points of an answer; their texts, one after the other, are the answer.

    A skeleton has no place for an opening line: it belongs to the first point.
    """
    starts = part_starts(answer)
    cuts = [0, *(len(answer[:start].rstrip()) for start in starts[1:]), len(answer)]
    points = [SkeletonPoint(_label(answer[begin:end]), answer[begin:end]) for begin, end in pairwise(cuts)]
    if len(points) > 1 and is_lead_in(points[0].text):
        lead, first, *rest = points
        points = [SkeletonPoint(first.label, lead.text + first.text), *rest]
    return points


def to_requests(record: Instruction, prompts: SkeletonPrompts, *, routed: bool = False) -> list[Instruction]:
    """A record as the requests of Skeleton-of-Thought with their answers: the skeleton, then each point.

    The skeleton has one point, and the record follows unchanged, if the answer has fewer than two points, more than
    ``prompts.max_points``, or points hardly longer than their skeleton. With ``routed`` the same holds for atlas tasks
    whose steps need each other: so the model learns the paper's router (SoT-R) from the ground truth.
    """
    points = split_points(record.answer)
    labels = [point.label for point in points]
    is_worth_it = len(record.answer) >= _WORTH * len(write_skeleton(labels))
    task = task_for_prompt(record.messages[-1]["content"]) if routed else None
    is_sequential = task is not None and not task.independent
    if is_sequential or not MIN_POINTS <= len(points) <= prompts.max_points or not is_worth_it:
        labels = [_label(record.answer)]
    skeleton = Instruction(
        f"{record.id}/skeleton",
        record.place,
        tuple(prompts.skeleton_messages(record.messages)),
        write_skeleton(labels),
    )
    if len(labels) < MIN_POINTS:
        return [skeleton, record]
    return [skeleton, *_expansions(record, points, labels, prompts)]


def _expansions(
    record: Instruction, points: Sequence[SkeletonPoint], labels: Sequence[str], prompts: SkeletonPrompts
) -> list[Instruction]:
    return [
        replace(
            record,
            id=f"{record.id}/{number}",
            messages=tuple(prompts.point_messages(record.messages, labels, number)),
            answer=point.text.strip() if prompts.strip else point.text,
        )
        for number, point in enumerate(points, start=1)
    ]


def _label(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return opening(line, POINT_WORDS) or "part"
