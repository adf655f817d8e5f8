"""Which methods dominate which."""

import pytest

from tests.support.judged import section, summary_of

MANY = 12


def flat(seconds, quality):
    return [(seconds, quality)] * MANY


def pairs(summary):
    return {(entry.better, entry.worse) for entry in summary.dominations}


def test_faster_and_better_dominates():
    summary = summary_of({"twin": flat(2.0, 0.5), "pasta": flat(1.0, 0.75)})
    (entry,) = summary.dominations
    assert (entry.better, entry.worse) == ("pasta", "twin")
    assert entry.speed_ratio.value == pytest.approx(2.0)
    assert entry.quality_difference.value == pytest.approx(0.25)
    assert entry.is_clear
    assert summary.front == ("pasta",)


def test_faster_and_worse_does_not_and_both_are_on_the_front():
    summary = summary_of({"twin": flat(2.0, 0.75), "pasta": flat(1.0, 0.5)})
    assert summary.dominations == ()
    assert summary.front == ("twin", "pasta")


def test_as_good_and_faster_dominates():
    summary = summary_of({"twin": flat(2.0, 0.5), "pasta": flat(1.0, 0.5)})
    assert pairs(summary) == {("pasta", "twin")}
    assert summary.dominations[0].is_clear


def test_equals_dominate_neither():
    summary = summary_of({"twin": flat(1.0, 0.5), "pasta": flat(1.0, 0.5)})
    assert summary.dominations == ()
    assert summary.front == ("twin", "pasta")


def test_a_method_that_comes_later_may_be_the_dominated_one():
    summary = summary_of({"twin": flat(1.0, 1.0), "sot": flat(2.0, 0.5)})
    (entry,) = summary.dominations
    assert (entry.better, entry.worse) == ("twin", "sot")
    assert entry.speed_ratio.value == pytest.approx(2.0)
    assert entry.quality_difference.value == pytest.approx(0.5)
    assert entry.speed_ratio.low <= entry.speed_ratio.value <= entry.speed_ratio.high


def test_an_advantage_within_the_noise_is_not_clear():
    mixed = [(1.0, 1.0 if n % 2 else 0.0) for n in range(MANY - 1)] + [(1.0, 1.0)]
    summary = summary_of({"twin": flat(2.0, 0.5), "pasta": mixed})
    (entry,) = summary.dominations
    assert entry.is_no_slower
    assert not entry.is_no_worse
    assert not entry.is_clear


@pytest.mark.parametrize(("count", "clear"), [(1, False), (2, False), (5, False), (6, True)])
def test_a_few_prompts_clear_no_doubt(count, clear):
    summary = summary_of({"twin": [(2.0, 0.5)] * count, "pasta": [(1.0, 1.0)] * count})
    assert pairs(summary) == {("pasta", "twin")}
    assert summary.dominations[0].is_clear is clear


def test_means_are_those_that_are_shown_and_the_evidence_is_on_shared_prompts():
    # Pasta's mean is the higher one by a third prompt. On the two that both have, sot is faster.
    summary = summary_of(
        {
            "twin": [(4.0, 1.0), (4.0, 1.0), (4.0, 1.0)],
            "pasta": [(2.0, 0.5), (2.0, 0.5), (0.01, 0.5)],
            "sot": [(1.0, 0.4), (1.0, 0.4), None],
        }
    )
    (entry,) = (entry for entry in summary.dominations if entry.worse == "sot" and entry.better == "pasta")
    assert entry.speed_ratio.value == pytest.approx(0.5)
    assert entry.speed_ratio.count == 2
    assert entry.quality_difference.value == pytest.approx(0.1)
    assert not entry.is_clear


def test_methods_without_a_prompt_in_common_give_no_evidence():
    summary = summary_of({"twin": [(4.0, 0.1)] * 2, "pasta": [(1.0, 0.9), None], "sot": [None, (2.0, 0.5)]})
    (entry,) = (entry for entry in summary.dominations if entry.worse == "sot")
    assert (entry.better, entry.speed_ratio, entry.quality_difference) == ("pasta", None, None)
    assert not entry.is_clear


def test_a_line_is_held_against_another_point_by_point():
    summary = summary_of(
        {
            "twin": flat(4.0, 1.0),
            "a1": flat(2.0, 0.5),
            "a2": flat(1.0, 0.4),
            "b1": flat(1.5, 0.6),
            "b2": flat(0.5, 0.3),
        },
        a1=section(line="round 1"),
        a2=section(line="round 1"),
        b1=section(line="round 2"),
        b2=section(line="round 2"),
    )
    found = {(entry.line, entry.other): entry for entry in summary.lines}
    assert found["round 2", "round 1"].dominated == ("a1",)
    assert found["round 2", "round 1"].num_points == 2
    assert found["round 1", "round 2"].dominated == ()


def test_methods_without_quality_have_no_place():
    summary = summary_of({"twin": [(2.0, None)], "pasta": [(1.0, None)]})
    assert summary.placed == []
    assert summary.front == ()
