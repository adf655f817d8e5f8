"""The exact judge of atlas answers."""

from collections.abc import Sequence

from pasta.data.atlas import AtlasTask, grade, task_asked
from pasta.errors import UserError
from pasta.judges.judge import Case, Verdict
from pasta.rows import Messages


class GraderJudge:
    """Grades each answer by the share of its statements that are right (``pasta.data.atlas.grade``): 1 is a perfect
    answer; a missing and an extra statement count as wrong. The baseline's answer is not used."""

    def judge(self, cases: Sequence[Case]) -> list[list[Verdict]]:
        """Raises UserError for a prompt that is no task of the atlas."""
        out = []
        for case in cases:
            task = graded_task(case.messages)
            grades = [grade(task, answer) for answer in case.answers]
            out.append([Verdict(g.right / g.total, {"right": g.right, "total": g.total}) for g in grades])
        return out

    def usage(self) -> dict[str, float]:
        """Empty: grading uses nothing."""
        return {}


def graded_task(messages: Messages) -> AtlasTask:
    """The task of the atlas that a prompt is. Raises UserError if it is none."""
    if (task := task_asked(messages)) is None:
        shown = messages[-1]["content"][:60]
        raise UserError(
            f"judge.kind: grader: {shown!r} is no atlas prompt; use teacher or reward for other prompts"
        )
    return task
