"""The exact judge of atlas answers."""

from collections.abc import Sequence

from pasta.data.atlas import grade, task_for_prompt
from pasta.errors import UserError
from pasta.judges.judge import Case, Verdict


class GraderJudge:
    """Grades each answer by the share of its statements that are right (``pasta.data.atlas.grade``): 1 is a perfect
    answer; a missing and an extra statement count as wrong. The baseline's answer is not used."""

    def judge(self, cases: Sequence[Case]) -> list[list[Verdict]]:
        """Raises UserError for a prompt that is no task of the atlas."""
        out = []
        for case in cases:
            prompt = case.messages[-1]["content"]
            task = task_for_prompt(prompt) if len(case.messages) == 1 else None
            if task is None:
                raise UserError(
                    f"judge.kind: grader: {prompt[:60]!r} is no atlas prompt; use teacher or reward for other prompts"
                )
            grades = [grade(task, answer) for answer in case.answers]
            out.append([Verdict(g.right / g.total, {"right": g.right, "total": g.total}) for g in grades])
        return out

    def usage(self) -> dict[str, float]:
        """Empty: grading uses nothing."""
        return {}
