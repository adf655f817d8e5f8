"""The exact judge of atlas answers."""

from collections.abc import Sequence

from pasta.data.atlas import grade, task_asked
from pasta.data.prompts import Messages
from pasta.errors import UserError
from pasta.judges.judge import Case, Verdict


def not_gradable(messages: Messages) -> UserError:
    """The error of a prompt that is no task of the atlas."""
    shown = messages[-1]["content"][:60]
    return UserError(
        f"judge.kind: grader: {shown!r} is no atlas prompt; use teacher or reward for other prompts"
    )


class GraderJudge:
    """Grades each answer by the share of its statements that are right (``pasta.data.atlas.grade``): 1 is a perfect
    answer; a missing and an extra statement count as wrong. The baseline's answer is not used."""

    def judge(self, cases: Sequence[Case]) -> list[list[Verdict]]:
        """Raises UserError for a prompt that is no task of the atlas."""
        out = []
        for case in cases:
            if (task := task_asked(case.messages)) is None:
                raise not_gradable(case.messages)
            grades = [grade(task, answer) for answer in case.answers]
            out.append([Verdict(g.right / g.total, {"right": g.right, "total": g.total}) for g in grades])
        return out

    def usage(self) -> dict[str, float]:
        """Empty: grading uses nothing."""
        return {}
