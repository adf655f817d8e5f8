"""Makes the judge of a configuration. Only the reward model needs torch."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pasta.judges.checks import check_reward_model
from pasta.judges.config import JudgeSection
from pasta.judges.grader import GraderJudge, graded_task
from pasta.judges.judge import Judge
from pasta.judges.tally import counted_usage
from pasta.judges.teacher import TeacherJudge
from pasta.rows import Messages

T = TypeVar("T")
R = TypeVar("R")
Metered = Callable[[T], tuple[R, dict[str, float]]]
JOURNAL = "replies.jsonl"


def check_judge(section: JudgeSection) -> None:
    """Check a judge's section without sending a request or reading weights. Raises UserError."""
    if section.reward is not None:
        check_reward_model(section.reward)


def check_asked(section: JudgeSection, prompts: Iterable[Messages]) -> None:
    """Raise UserError if the judge cannot rate answers to these prompts: the grader knows atlas tasks alone."""
    if section.kind == "grader":
        for messages in prompts:
            graded_task(messages)


def make_judge(section: JudgeSection, work_dir: Path, api_key: str | None = None) -> Judge:
    """Make the judge of a section. Replies that cost money are written to ``work_dir`` as they come.

    Its usage includes what earlier runs have paid for and ``VerdictTally`` has not counted: replies of a batch that was
    cut.
    """
    if section.teacher is not None:
        return TeacherJudge(section.teacher, work_dir / JOURNAL, api_key, counted_usage(work_dir))
    if section.reward is not None:
        from pasta.judges.reward import RewardJudge

        return RewardJudge(section.reward)
    return GraderJudge()


def metered(judge: Judge, ask: Callable[[T], R]) -> Metered[T, R]:
    """Call ``ask`` and report what it made ``judge`` use: requests, tokens and cost of that call alone."""
    before: dict[str, float] = {}

    def work(given: T) -> tuple[R, dict[str, float]]:
        answer, usage = ask(given), judge.usage()
        spent = {key: value - before.get(key, 0.0) for key, value in usage.items()}
        before.update(usage)
        return answer, spent

    return work
