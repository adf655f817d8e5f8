"""What each method made of each prompt, set against the baseline."""

import pytest

from pasta.evaluation.results.outcomes import is_pairwise, outcomes_of, realised_speedup, theoretical_speedup
from tests.support.evaluations import answer, prompt


def outcome(twin, pasta, verdicts=None, **record):
    said = [] if verdicts is None else [{"key": "tea", "verdicts": verdicts}]
    records = [prompt("tea", {"twin": twin, "pasta": pasta}, **record)]
    (found,) = outcomes_of(records, said, baseline="twin", methods=["pasta"])["pasta"]
    return found


def test_speedups_are_over_the_baseline_median_seconds_and_tokens_by_critical_path():
    found = outcome(
        answer(tokens=90, seconds=[9.0, 2.0, 3.0]), answer(tokens=100, critical_path=30, seconds=[1.5])
    )
    assert found.realised == pytest.approx(2.0)
    assert found.theoretical == pytest.approx(3.0)
    assert found.length == 90


@pytest.mark.parametrize("which", ["twin", "pasta"])
def test_a_prompt_of_which_either_answer_was_cut_has_no_speedup(which):
    answers = {
        name: answer(finish_reason="length" if name == which else "stop") for name in ("twin", "pasta")
    }
    found = outcome(**answers)
    assert (found.realised, found.theoretical) == (None, None)
    assert found.cut == (which == "pasta")


def test_a_cut_answer_keeps_its_quality():
    found = outcome(
        answer(), answer(finish_reason="length"), {"twin": {"quality": 1.0}, "pasta": {"quality": 0.25}}
    )
    assert found.quality_difference == -0.75


def test_a_skipped_prompt_has_its_reason_and_nothing_else():
    found = outcome(answer(), {"skipped": "4096 tokens"})
    assert found.skipped == "4096 tokens"
    assert (found.answer, found.realised, found.theoretical, found.cut) == (None, None, None, False)


def test_a_prompt_that_the_baseline_skipped_has_no_speedup_and_no_length():
    found = outcome({"skipped": "too long"}, answer(), {"pasta": {"quality": None}})
    assert (found.realised, found.theoretical, found.length) == (None, None, None)
    assert found.answer is not None


def test_untimed_answers_have_a_theoretical_speedup_only():
    found = outcome(answer(seconds=[]), answer(seconds=[], critical_path=50))
    assert (found.realised, found.theoretical) == (None, 2.0)


def test_an_endpoint_has_a_realised_speedup_only():
    found = outcome(answer(seconds=[3.0]), answer(critical_path=None, steps=None, threads=[]))
    assert (found.realised, found.theoretical, found.num_threads) == (3.0, None, None)


def test_against_an_endpoint_that_counts_no_tokens_there_is_a_realised_speedup_only():
    found = outcome(answer(tokens=0, critical_path=None, seconds=[3.0]), answer())
    assert (found.realised, found.theoretical, found.length) == (3.0, None, None)


def test_an_invalid_verdict_is_not_a_missing_one():
    invalid = {"quality": None, "invalid": "Both are nice."}
    assert outcome(answer(), answer(), {"twin": {"quality": 1.0}, "pasta": invalid}).invalid
    assert not outcome(answer(), answer()).invalid


def test_a_judge_that_compares_leaves_the_baseline_at_one_half():
    verdicts = {"twin": {"quality": 0.5}, "pasta": {"quality": 0.7, "orders": [0.6, 0.8]}}
    assert is_pairwise([verdicts], "twin")
    assert is_pairwise([{"pasta": {"quality": 0.7}}], "twin")
    found = outcome(answer(), answer(), {"pasta": {"quality": 0.7}})
    assert found.baseline_quality == 0.5
    assert found.quality_difference == pytest.approx(0.2)


def test_a_grader_that_says_one_half_of_the_baseline_does_not_compare():
    verdicts = {"twin": {"quality": 0.5, "right": 1, "total": 2}, "pasta": {"quality": 1.0}}
    assert not is_pairwise([verdicts], "twin")
    assert not is_pairwise([], "twin")
    # A baseline that skipped every prompt was not graded either.
    assert not is_pairwise([{"pasta": {"quality": 0.5, "right": 1, "total": 2}}], "twin")


def test_a_record_without_a_method_adds_nothing_to_it():
    records = [prompt("tea", {"twin": answer()}), prompt("milk", {"twin": answer(), "pasta": answer()})]
    found = outcomes_of(records, [], baseline="twin", methods=["twin", "pasta"])
    assert [o.key for o in found["twin"]] == ["tea", "milk"]
    assert [o.key for o in found["pasta"]] == ["milk"]


def test_speedups_are_the_baseline_s_over_the_answer_s():
    baseline = {"seconds": [2.0, 9.0, 3.0], "tokens": 120}
    assert realised_speedup(baseline, {"seconds": [1.5]}) == 2.0
    assert theoretical_speedup(baseline, {"critical_path": 40}) == 3.0
    assert theoretical_speedup(baseline, {"critical_path": None}) is None
