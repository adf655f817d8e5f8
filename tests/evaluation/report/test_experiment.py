"""The report's sections on lines as wholes and on marks against ground truth."""

from dataclasses import replace

import pytest

from pasta.evaluation.report.experiment import areas_section, marks_section
from pasta.evaluation.results.fronts import Area
from pasta.evaluation.results.marks import Marks
from pasta.evaluation.results.summary import Summary, summarise_evaluation
from pasta.statistics import Estimate
from tests.support.reports import METHODS, evaluation


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise_evaluation(*evaluation(), baseline="twin", methods=METHODS)


def rows(sections: list[str]) -> list[list[str]]:
    lines = "\n".join(sections).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_one_line_is_no_comparison(summary: Summary) -> None:
    assert [entry.line for entry in summary.areas] == ["round 1"]
    assert areas_section(summary) == []


def test_every_line_is_shown_with_its_gain_over_the_one_before(summary: Summary) -> None:
    first = summary.areas[0]
    gain = Estimate(0.12, 0.05, 0.19, first.prompts, first.prompts)
    second = Area(
        "round 2",
        ("x",),
        first.prompts,
        Estimate(0.5, 0.4, 0.6, first.prompts, first.prompts),
        "round 1",
        gain,
    )
    sections = areas_section(replace(summary, areas=(first, second)))
    expected = ["round 2", "1", "0.500 (0.400–0.600)", "+0.120 (+0.050 to +0.190) over round 1"]
    assert rows(sections)[-1] == expected
    assert f"over the {first.prompts} prompts" in sections[-1]


def test_marks_are_shown_where_there_is_truth(summary: Summary) -> None:
    assert all(method.marks is not None for method in summary.candidates)
    estimate = Estimate(0.25, 0.125, 0.5, 8, 8)
    marked = replace(summary.methods["pasta-1"], marks=Marks(estimate, None, None))
    known = replace(summary, methods={"twin": summary.methods["twin"], "pasta-1": marked})
    assert rows(marks_section(known))[-1] == ["round 1 λ=1", "0.250 (0.125–0.500)", "–", "–"]
    unknown = replace(known, methods={**known.methods, "pasta-1": replace(marked, marks=None)})
    assert marks_section(unknown) == []
