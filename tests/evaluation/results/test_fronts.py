"""The area under the front of a line, and its paired differences."""

import pytest

from pasta.evaluation.results.fronts import area_under, areas_of
from pasta.evaluation.results.outcomes import outcomes_of
from tests.support.evaluations import answer, prompt

LINES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "alone": None}


def outcomes(points, count=40, missing=()):
    """``points`` (speed, quality) of each method, the same on every prompt but for a common wave."""
    records, verdicts = [], []
    for n in range(count):
        wave = 1.0 + 0.2 * (n % 3 - 1)
        answers = {"twin": answer(tokens=100)} | {
            name: answer(critical_path=100 / speed / wave) for name, (speed, _) in points.items()
        }
        records.append(prompt(str(n), answers))
        said = {"twin": {"quality": 0.9}} | {
            name: {"quality": quality if (name, n) not in missing else None}
            for name, (_, quality) in points.items()
        }
        verdicts.append({"key": str(n), "verdicts": said})
    return outcomes_of(records, verdicts, baseline="twin", methods=points)


@pytest.mark.parametrize(
    ("points", "area"),
    [
        ([], 0.0),
        ([(2.0, 0.9)], 0.2),
        ([(0.9, 0.9)], 0.0),
        ([(2.0, 0.6)], 0.0),
        ([(2.0, 0.9), (1.5, 0.8)], 0.2),
        ([(2.0, 0.8), (1.5, 0.9)], 0.15),
        ([(1.5, 0.9), (3.0, 0.75), (2.0, 0.8)], 0.05 * 2.0 + 0.05 * 1.0 + 0.1 * 0.5),
    ],
)
def test_the_area_is_what_the_points_dominate_above_the_reference(points, area):
    assert area_under(points, (1.0, 0.7)) == pytest.approx(area)


def test_each_line_has_an_area_and_its_gain_over_the_one_before():
    made = outcomes(
        {"a1": (2.0, 0.8), "a2": (1.5, 0.9), "alone": (9.0, 1.0), "b1": (2.5, 0.9), "b2": (1.5, 0.8)}
    )
    first, second = areas_of(made, LINES, "theoretical")
    assert (first.line, first.methods, first.over, first.gain) == ("a", ("a1", "a2"), None, None)
    assert (second.line, second.over, second.prompts) == ("b", "a", 40)
    assert second.gain.value == pytest.approx(second.area.value - first.area.value)
    assert 0 < second.gain.low < second.gain.value < second.gain.high


def test_a_gain_is_paired_so_that_what_all_share_cancels():
    made = outcomes({"a1": (2.0, 0.9), "b1": (2.0, 0.9)})
    first, second = areas_of(made, LINES, "theoretical")
    assert first.area.high > first.area.low
    assert (second.gain.low, second.gain.value, second.gain.high) == (0.0, 0.0, 0.0)


def test_only_prompts_count_that_every_method_has_a_quality_of():
    made = outcomes({"a1": (2.0, 0.9), "b1": (2.0, 0.9)}, missing={("b1", 3), ("a1", 5)})
    assert [entry.prompts for entry in areas_of(made, LINES, "theoretical")] == [38, 38]


def test_without_lines_or_common_prompts_there_are_no_areas():
    assert areas_of(outcomes({"alone": (2.0, 0.9)}), LINES, "theoretical") == ()
    nothing = {("a1", n) for n in range(40)}
    assert areas_of(outcomes({"a1": (2.0, 0.9)}, missing=nothing), LINES, "theoretical") == ()
