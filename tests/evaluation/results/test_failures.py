"""Where a method fails, by task family."""

import pytest

from pasta.data.atlas import grade, heldout_prompts
from pasta.evaluation.results.failures import ALL_PROMPTS, failures_of, wrong_by_reason, wrong_statements
from pasta.evaluation.results.outcomes import outcomes_of
from tests.support.evaluations import answer, prompt


def outcomes(entries, method="pasta"):
    """By (family, the baseline's quality, the method's quality, finish reason)."""
    records, verdicts = [], []
    for n, (family, base, quality, reason) in enumerate(entries):
        answers = {"twin": answer(), "pasta": answer(finish_reason=reason)}
        records.append(prompt(str(n), answers, family=family))
        verdicts.append(
            {"key": str(n), "verdicts": {"twin": {"quality": base, "n": n}, "pasta": {"quality": quality}}}
        )
    return outcomes_of(records, verdicts, baseline="twin", methods=["twin", "pasta"])[method]


ENTRIES = [
    ("quiz", 1.0, 0.9, "stop"),
    ("quiz", 1.0, 0.5, "length"),
    ("shop", 0.5, 0.5, "stop"),
    ("trip", 1.0, 0.0, "stop"),
]


def test_a_candidate_is_held_against_the_baseline():
    found = failures_of(outcomes(ENTRIES), is_baseline=False)
    assert [failure.family for failure in found] == ["trip", "quiz"]
    quiz = found[1]
    assert (quiz.prompts, quiz.cut) == (2, 1)
    assert quiz.quality == pytest.approx(0.7)
    assert quiz.quality_difference == pytest.approx(-0.3)


def test_the_example_is_the_worst_answer():
    quiz = failures_of(outcomes(ENTRIES), is_baseline=False)[1]
    assert quiz.example.key == "1"
    assert quiz.example.finish_reason == "length"
    assert quiz.example.prompt == "Tell me about 1."


def test_the_baseline_is_held_against_perfection():
    found = failures_of(outcomes(ENTRIES, "twin"), is_baseline=True)
    assert [(failure.family, failure.quality) for failure in found] == [("shop", 0.5)]
    assert found[0].quality_difference is None


def test_only_the_worst_families_are_named():
    entries = [(f"family {n}", 1.0, 0.1 * n, "stop") for n in range(6)]
    assert [f.family for f in failures_of(outcomes(entries), is_baseline=False, most=2)] == [
        "family 0",
        "family 1",
    ]


def test_prompts_without_a_family_are_one_group():
    found = failures_of(outcomes([(None, 1.0, 0.5, "stop"), (None, 1.0, 1.0, "stop")]), is_baseline=False)
    assert [(failure.family, failure.quality) for failure in found] == [(ALL_PROMPTS, 0.75)]


def test_without_a_judge_answers_that_were_cut_are_failures():
    entries = [("quiz", None, None, "length"), ("shop", None, None, "stop")]
    assert [failure.family for failure in failures_of(outcomes(entries), is_baseline=False)] == ["quiz"]


def test_a_judge_that_compares_finds_no_failures_of_the_baseline():
    entries = [("quiz", 0.5, 0.7, "stop"), ("shop", 0.5, 0.5, "stop")]
    assert failures_of(outcomes(entries, "twin"), is_baseline=True, pairwise=True) == ()


def test_a_method_without_a_loss_has_no_failures():
    assert failures_of(outcomes([("quiz", 0.5, 0.75, "stop")]), is_baseline=False) == ()


def test_what_the_judge_said_is_repeated():
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    verdict = {"quality": 0.25, "orders": [0.2, 0.3], "weighted": True}
    verdicts = [{"key": "a", "verdicts": {"twin": {"quality": 0.5}, "pasta": verdict}}]
    found = outcomes_of(records, verdicts, baseline="twin", methods=["pasta"])["pasta"]
    (failure,) = failures_of(found, is_baseline=False)
    assert failure.example.said == ("orders: 0.200, 0.300", "weighted: True")


def test_an_atlas_answer_s_wrong_statements_are_named_with_why():
    task = next(task for task in heldout_prompts(60) if task.family == "profiles")
    text = f"{task.answer}\n\nI know a duck."
    right = grade(task, text)
    records = [prompt("a", {"pasta": answer(text)}, text=task.prompt, family=task.family)]
    verdicts = [
        {"key": "a", "verdicts": {"pasta": {"quality": 0.5, "right": right.right, "total": right.total}}}
    ]
    (found,) = outcomes_of(records, verdicts, baseline="twin", methods=["pasta"])["pasta"]
    wrong = wrong_statements(found)
    assert ("I know a duck.", "cannot be read") in wrong
    counts = wrong_by_reason([found])
    assert counts["cannot be read"] == 1
    assert sum(counts.values()) == len(wrong) == right.total - right.right
    (failure,) = failures_of([found], is_baseline=False)
    assert failure.example.said[0] == f"{right.right} of {right.total} statements right"
    assert "cannot be read: I know a duck." in failure.example.said
