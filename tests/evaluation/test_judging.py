"""An evaluation's answers are judged as a user gets them; whoever compares is not asked about the baseline."""

from typing import Any

from pasta.data.endpoint import EndpointSection
from pasta.evaluation.judging import judge_answers
from pasta.judges.config import TeacherJudgeSection
from pasta.judges.grader import GraderJudge
from pasta.judges.teacher import TeacherJudge
from tests.support.endpoint import completion, endpoint_server
from tests.support.samples import tasks


def record(**texts: str | None) -> dict[str, Any]:
    """A prompt of the atlas with the texts that methods gave; None is skipped."""
    (task,) = tasks(1)
    answers = {
        name: {"skipped": "too long"} if text is None else {"text": text} for name, text in texts.items()
    }
    return {"key": "k", "messages": task.messages, "answers": answers}


def compare(record: dict[str, Any], tmp_path, *replies: str) -> tuple[dict[str, Any], int]:
    """A pairwise judge's verdicts, and how often it was asked; it says its replies in turn, over and over."""
    with endpoint_server(lambda _, number: completion(replies[number % len(replies)])) as server:
        endpoint = EndpointSection(server.url, "judge", api_key_env=None, concurrency=1)
        judge = TeacherJudge(
            TeacherJudgeSection(endpoint, format_retries=1), tmp_path / "replies.jsonl", None
        )
        (judged,) = judge_answers(judge, [record], baseline="twin", pairwise=True)
        return judged["verdicts"], len(server.requests)


def test_the_grader_rates_the_baseline_too():
    (task,) = tasks(1)
    half = task.answer[: len(task.answer) // 2]
    (judged,) = judge_answers(
        GraderJudge(), [record(twin=task.answer, pasta=half)], baseline="twin", pairwise=False
    )
    assert judged["key"] == "k"
    assert judged["verdicts"]["twin"]["quality"] == 1.0
    assert judged["verdicts"]["pasta"]["quality"] < 1.0
    assert judged["verdicts"]["pasta"].keys() == {"quality", "right", "total"}


def test_a_method_that_skipped_the_prompt_has_no_verdict():
    (judged,) = judge_answers(GraderJudge(), [record(twin="x", sot=None)], baseline="twin", pairwise=False)
    assert [*judged["verdicts"]] == ["twin"]


def test_whoever_compares_has_no_verdict_on_the_baseline(tmp_path):
    verdicts, asked = compare(record(twin="one", pasta="two"), tmp_path, "A", "B")
    assert [*verdicts] == ["pasta"]
    assert verdicts["pasta"]["quality"] == 1.0
    assert asked == 2  # both orders


def test_equal_texts_are_judged_once(tmp_path):
    verdicts, asked = compare(record(twin="one", pasta="two", apar="two", sot="one"), tmp_path, "B", "A")
    assert asked == 2
    assert verdicts["pasta"] == verdicts["apar"]
    assert verdicts["pasta"]["quality"] == 0.0
    assert verdicts["sot"]["quality"] == 0.5


def test_a_verdict_out_of_format_is_asked_for_again_and_then_invalid(tmp_path):
    verdicts, asked = compare(record(twin="one", pasta="two"), tmp_path, "Both are fine.")
    assert verdicts["pasta"] == {"quality": None, "invalid": "Both are fine."}
    assert asked == 4


def test_nothing_can_be_compared_with_a_baseline_that_has_no_answer(tmp_path):
    verdicts, asked = compare(record(twin=None, pasta="two"), tmp_path, "A")
    assert verdicts == {"pasta": {"quality": None, "invalid": "the baseline has no answer to compare with"}}
    assert asked == 0
