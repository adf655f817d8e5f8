"""A report on disk: what is in it, and that it can be read."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pasta.errors import UserError
from pasta.evaluation.report.write import log_report, write_report
from pasta.evaluation.results.summary import summarise_evaluation
from pasta.tracking import Tracker
from tests.support.evaluations import answer, prompt
from tests.support.judged import section
from tests.support.reports import METHODS, evaluation, threaded

pytestmark = pytest.mark.slow

CONFIG = {"name": "tea", "repeats": 1, "judge": {"kind": "grader"}}
MACHINES = [
    {"processor": "Abacus 9000", "cores": 2, "formats": {"twin": "float32", "pasta": "float32"}},
    {"processor": "Abacus 9001", "cores": 2, "formats": {"twin": "float32", "pasta": "bfloat16"}},
]


def written(directory, records, verdicts, methods=METHODS, baseline="twin", config=CONFIG):
    summary = summarise_evaluation(records, verdicts, baseline=baseline, methods=methods)
    paths = write_report(
        directory, summary, records, verdicts, title="Tea & milk", config=config, machines=MACHINES
    )
    return summary, paths, (directory / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    return directory, *written(directory, *evaluation())


def section_of(text: str, heading: str) -> str:
    return text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def test_all_files_are_there_and_no_others(report):
    directory, _, paths, _ = report
    assert {path for path in directory.rglob("*") if path.is_file()} == {*paths}
    assert {path.name for path in paths} == {
        "report.md",
        "figures.json",
        "pareto.png",
        "speedups.png",
        "speedup_by_length_and_threads.png",
        "lanes.png",
        "token_budget.png",
        "families.png",
        "pasta-4.png",
        "sot.png",
    }


def test_every_picture_opens_is_wide_enough_and_not_blank(report):
    for path in (path for path in report[2] if path.suffix == ".png"):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"), dtype=float)
        assert pixels.shape[1] == 1600
        assert pixels.shape[0] > 300
        assert pixels.std() > 10, f"{path.name} is blank"
        # Nothing that is drawn reaches the edges.
        assert all(edge.min() > 250 for edge in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:])), (
            path
        )


def test_the_report_links_to_what_is_there_and_to_all_of_it(report):
    directory, _, paths, text = report
    targets = set(re.findall(r"\]\(([^)]+)\)", text))
    assert {directory / target for target in targets} == {*paths} - {directory / "report.md"}


def test_the_table_has_every_method_with_its_numbers(report):
    _, summary, _, text = report
    for method in summary.methods.values():
        (row,) = (
            line
            for line in text.splitlines()
            if line.startswith(f"| {method.title}") and "×" in line and "ms" in line
        )
        assert f"{method.realised.value:.2f}×" in row
        assert f"{method.theoretical.value:.2f}×" in row
        assert f"{method.quality.value:.3f}" in row
        if method.name != "twin" and method.realised.low != method.realised.high:
            assert f"({method.realised.low:.2f}–{method.realised.high:.2f})" in row


def test_the_numbers_of_figures_json_are_the_summary_s(report):
    directory, summary, _, _ = report
    values = json.loads((directory / "figures.json").read_text(encoding="utf-8"))
    assert values["summary"] == json.loads(json.dumps(asdict(summary)))
    assert values["config"] == CONFIG
    assert values["machines"] == MACHINES
    assert values["failures"]["sot"][0]["example"]["answer"]


def test_it_says_what_is_not_in_it_and_why(report):
    text = section_of(report[3], "## What is not in it")
    cells = [
        cell.strip() for cell in next(line for line in text.splitlines() if "| sot" in line).split("|")[2:-1]
    ]
    # prompts, skipped, cut, fallbacks, invalid, in the speedup, in the quality
    assert cells == ["5", "1", "1", "1", "1", "3", "3"]
    assert "skipped 1×: prompt of 4096 tokens, expected at most 2048" in text
    assert "fell back 1×: a skeleton of one point" in text
    assert r"invalid 1×: Both are \*fine\*." in text


def test_it_says_how_it_was_measured(report):
    text = section_of(report[3], "## How it was measured")
    assert "- processor Abacus 9000, cores 2, formats float32\n" in text
    assert "- processor Abacus 9001, cores 2, formats twin float32 pasta bfloat16\n" in text
    assert "timed once" in text
    assert '"kind": "grader"' in text


def test_it_shows_where_each_method_fails_with_an_example(report):
    records, _ = evaluation()
    text = section_of(report[3], "## Where each method fails")
    for name in ("twin", "sot", "round 1 λ=1 (`pasta-1`)"):
        assert f"### {name}\n" in text
    failing = text.partition("### sot\n")[2].partition("\n### ")[0]
    assert "Tea is hot." in failing
    assert "50 of 100 statements right" in failing
    assert any(record["messages"][0]["content"][:40] in failing for record in records)


def test_without_a_judge_there_is_speed_and_no_front(tmp_path):
    records, _ = evaluation(2)
    _, paths, text = written(tmp_path, records, [], config={"repeats": 1, "judge": None})
    assert "No judge was configured" in text
    assert "the quality of the answers?" not in text
    assert {path.name for path in paths} >= {"speedups.png", "token_budget.png"}
    assert not {path.name for path in paths} & {"pareto.png"}


def test_a_judge_that_was_not_asked_yet_is_not_said_to_be_none(tmp_path):
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    methods = {"twin": section("sequential"), "pasta": section()}
    # as --report-only writes it while answers are decoded
    _, _, text = written(tmp_path, records, [], methods)
    assert "No judge was configured" not in text
    assert "The judge has given no verdict yet: nothing is said of quality." in text


def test_a_judge_none_of_whose_verdicts_is_valid_is_not_said_to_be_silent(tmp_path):
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    invalid = {"quality": None, "invalid": "Tea."}
    verdicts = [{"key": "a", "verdicts": {"twin": invalid, "pasta": invalid}}]
    _, _, text = written(tmp_path, records, verdicts, {"twin": section("sequential"), "pasta": section()})
    assert "no verdict yet" not in text
    assert "None of the judge’s verdicts is valid: nothing is said of quality." in text
    assert "No answer was judged" not in section_of(text, "## Where each method fails")


@pytest.mark.parametrize("kind", ["teacher", "reward"])
def test_only_a_teacher_is_asked_in_both_orders(tmp_path, kind):
    records = [prompt("a", {"twin": answer(), "pasta": answer()})]
    verdicts = [{"key": "a", "verdicts": {"twin": {"quality": 0.5}, "pasta": {"quality": 0.75}}}]
    methods = {"twin": section("sequential"), "pasta": section()}
    _, _, text = written(tmp_path, records, verdicts, methods, config={"judge": {"kind": kind}})
    assert "the probability that the judge prefers the answer to the baseline’s" in text
    assert ("both orders averaged" in text) == (kind == "teacher")


def test_one_prompt_is_enough_and_has_no_intervals(tmp_path):
    records, verdicts = evaluation(1)
    _, paths, text = written(tmp_path, records, verdicts)
    assert "pareto.png" in {path.name for path in paths}
    assert "on 1 prompt," in text
    assert "2.50× |" in re.sub(" +", " ", text)


@pytest.mark.parametrize("records", [[], [prompt("a", {name: {"skipped": "too long"} for name in METHODS})]])
def test_nothing_measured_is_a_report_too(tmp_path, records):
    _, paths, text = written(tmp_path, records, [])
    assert [path.name for path in paths] == ["figures.json", "report.md"]
    assert "Nothing was measured" in text
    assert ("skipped 1×: too long" in text) == bool(records)


def test_a_baseline_whose_endpoint_counts_no_tokens_has_no_lanes_to_compare_with(tmp_path):
    remote = answer(tokens=0, budget={"text": 0}, critical_path=None, steps=None, threads=[], ttft_s=None)
    records = [prompt("a", {"remote": remote, "pasta": threaded(seconds=[0.5])})]
    methods = {"remote": section("sequential"), "pasta": section()}
    _, paths, text = written(tmp_path, records, [], methods, baseline="remote")
    assert "The fastest is **pasta**: 2.00×" in text
    assert "lanes.png" not in {path.name for path in paths}


def test_untimed_answers_are_compared_by_theoretical_speedup(tmp_path):
    records = [prompt("a", {"twin": answer(seconds=[]), "pasta": answer(seconds=[], critical_path=40)})]
    methods = {"twin": section("sequential"), "pasta": section()}
    _, paths, text = written(tmp_path, records, [], methods, config={"repeats": 0})
    assert "speedups.png" in {path.name for path in paths}
    assert "The fastest is **pasta**: 2.50×" in text
    # Nor that all took turns: a method that was added later was decoded alone.
    assert "\nNothing was timed.\n" in text
    assert "before the next one is taken" not in text


def test_a_report_that_is_written_again_leaves_no_picture_of_the_earlier_one(tmp_path):
    records, verdicts = evaluation(1)
    written(tmp_path, records, verdicts)
    _, paths, _ = written(tmp_path, [], [])
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*paths}


def test_what_a_model_or_a_user_wrote_stays_text(tmp_path):
    wild = "```\n</details><script>|$x^2$|\n```"
    records = [prompt("a", {"twin": answer(), "a/../../b|c": answer(wild)}, text="Is $5 < $9 | *so*?")]
    verdicts = [{"key": "a", "verdicts": {"twin": {"quality": 1.0, "n": 1}, "a/../../b|c": {"quality": 0.0}}}]
    methods = {"twin": section("sequential"), "a/../../b|c": section()}
    _, paths, text = written(tmp_path / "in", records, verdicts, methods)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*paths}
    assert f"````\n{wild}\n````" in text
    assert r"Is $5 \< $9 \| \*so\*?" in text


def test_methods_whose_names_are_alike_have_a_picture_each(tmp_path):
    names = ["fastest", "bias+1", "bias@1", "bias 1"]
    seconds = {"twin": 1.0, **{name: 0.3 + 0.1 * n for n, name in enumerate(names)}}
    answers = {name: threaded(seconds=[spent]) for name, spent in seconds.items()}
    methods = {name: section() for name in names} | {"twin": section("sequential")}
    _, paths, _ = written(tmp_path, [prompt("a", answers)], [], methods)
    assert len({path for path in paths if path.parent.name == "lanes"}) == 3


@pytest.mark.filterwarnings("error")
def test_characters_that_the_pictures_font_lacks_are_no_warnings(tmp_path):
    records = [prompt("a", {"twin": answer(), "pasta": threaded()}, text="日本とは?")]
    methods = {"twin": section("sequential"), "pasta": section()}
    _, paths, _ = written(tmp_path, records, [], methods)
    assert tmp_path / "lanes.png" in paths


def test_win_rates_are_shown_for_a_judge_that_compares(tmp_path):
    records = [
        prompt(str(n), {"twin": answer(), "pasta": answer("Tea is hot." + n * " Very.")}) for n in range(4)
    ]
    verdicts = [
        {"key": str(n), "verdicts": {"twin": {"quality": 0.5}, "pasta": {"quality": q, "orders": [q, q]}}}
        for n, q in enumerate((1.0, 0.0, 1.0, 0.5))
    ]
    methods = {"twin": section("sequential"), "pasta": section()}
    _, _, text = written(tmp_path, records, verdicts, methods)
    assert "62.5 (" in text
    assert "without the difficulty term" in text


def test_a_win_rate_without_an_interval_says_why(tmp_path):
    """It stood alone, as if it were certain."""
    lengths = (0, 1, 2, 3, 4, 5)
    records = [
        prompt(str(n), {"twin": answer(), "pasta": answer("Tea is hot." + n * " Very.")}) for n in lengths
    ]
    verdicts = [
        {"key": str(n), "verdicts": {"twin": {"quality": 0.5}, "pasta": {"quality": q, "orders": [q, q]}}}
        for n, q in zip(lengths, (0.0, 1.0, 0.0, 1.0, 1.0, 0.0), strict=True)
    ]
    _, _, text = written(tmp_path, records, verdicts, {"twin": section("sequential"), "pasta": section()})
    assert re.search(
        r"\| \d\d\.\d \(\d+% of the resamples have no finite solution, so there is no interval\) +\|", text
    )


def test_a_directory_that_cannot_be_written_is_the_user_s_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    records, verdicts = evaluation(1)
    with pytest.raises(UserError, match="cannot be written"):
        written(tmp_path / "file" / "report", records, verdicts)


class Kept(Tracker):
    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.tables: dict[str, list] = {}
        self.images: dict[str, Path] = {}

    def summary(self, figures):
        self.figures |= figures

    def table(self, name, columns, rows):
        self.tables[name] = [dict(zip(columns, row, strict=True)) for row in rows]

    def image(self, name, path):
        self.images[name] = path


def test_the_same_is_logged(report):
    _, summary, paths, _ = report
    tracker = Kept()
    log_report(tracker, summary, paths)
    sot = summary.methods["sot"]
    assert tracker.figures["evaluate/sot/realised"] == sot.realised.value
    assert tracker.figures["evaluate/sot/cut"] == 1
    (row,) = (row for row in tracker.tables["evaluate/methods"] if row["method"] == "sot")
    assert (row["quality_low"], row["quality_high"]) == (sot.quality.low, sot.quality.high)
    assert {*tracker.images.values()} == {path for path in paths if path.suffix == ".png"}
    assert tracker.images["evaluate/lanes/sot"].name == "sot.png"
