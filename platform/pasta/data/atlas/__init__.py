"""Atlas: a small world of true facts, tasks over it, exact graders, and a tokenizer of its own."""

from pasta.data.atlas.families import FAMILIES
from pasta.data.atlas.grading import Grade, StructureGrade, grade, grade_structure
from pasta.data.atlas.plan import with_estimates
from pasta.data.atlas.tasks import (
    AtlasTask,
    Split,
    estimated,
    heldout_prompts,
    iter_corpus,
    sample_task,
    split_of,
    task_asked,
    task_for_prompt,
)

__all__ = [
    "FAMILIES",
    "AtlasTask",
    "Grade",
    "Split",
    "StructureGrade",
    "estimated",
    "grade",
    "grade_structure",
    "heldout_prompts",
    "iter_corpus",
    "sample_task",
    "split_of",
    "task_asked",
    "task_for_prompt",
    "with_estimates",
]
