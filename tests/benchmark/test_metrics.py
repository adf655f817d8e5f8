"""Metrics from hand-made records, and the tables that show them."""

import pytest

from pasta.benchmark.generate import generate_metrics
from pasta.benchmark.metrics import Metric, metrics_table
from pasta.benchmark.quality import family_table, quality_metrics
from pasta.benchmark.speed import replay_metrics, speed_metrics
from pasta.benchmark.steps import lane_metrics, lane_ratio
from pasta.markdown import markdown
from pasta.statistics import Estimate, bootstrap


def answer(independent, twin_seconds, pasta_seconds, tokens, path, right=4):
    return {
        "family": "profiles" if independent else "shop",
        "independent": independent,
        "theoretical": tokens / path,
        "realised": twin_seconds / pasta_seconds,
        "twin": {"seconds": [twin_seconds], "steps": tokens, "finish_reason": "stop"},
        "pasta": {"seconds": [pasta_seconds], "steps": path, "fault": "", "finish_reason": "stop"},
        "grades": {
            "twin_right": 4,
            "twin_total": 4,
            "pasta_right": right,
            "pasta_total": 4,
            "independent_parts": 3 if independent else 0,
            "annotated_parts": 3 if independent else 0,
            "dependent_left_alone": True,
            "superfluous_parts": 0,
            "sync_right": True,
        },
    }


RECORDS = [
    answer(True, 4.0, 1.0, 100, 25),
    answer(True, 1.0, 1.0, 100, 25, right=2),
    answer(False, 2.0, 2.0, 50, 50),
]


def by_key(metrics):
    return {metric.key: metric for metric in metrics}


def test_speedups_are_geometric_means_over_independent_and_over_all_prompts():
    metrics = by_key(speed_metrics(RECORDS))
    assert metrics["speedup.realised.independent"].value == pytest.approx(2.0)
    assert metrics["speedup.realised.all"].value == pytest.approx(4 ** (1 / 3))
    assert metrics["speedup.theoretical.independent"].value == pytest.approx(4.0)
    assert metrics["speedup.ratio.independent"].value == pytest.approx(0.5)
    assert metrics["speedup.realised.independent"].passed is False
    assert metrics["step_ms.twin"].value == pytest.approx(1e3 * 7 / 250)


@pytest.mark.parametrize("who", ["twin", "pasta"])
def test_a_prompt_with_a_cut_answer_counts_in_no_speedup(who):
    """As in an evaluation: the full time of that answer is unknown."""
    cut = answer(False, 9.0, 1.0, 90, 10)
    cut[who]["finish_reason"] = "length"
    ended, with_cut = by_key(speed_metrics(RECORDS)), by_key(speed_metrics([*RECORDS, cut]))
    for key in ("speedup.realised.all", "speedup.theoretical.all", "speedup.realised.independent"):
        assert with_cut[key].value == ended[key].value
    assert with_cut["speedup.realised.all"].note == "3 prompts"
    assert ("speedup.cut" in ended, with_cut["speedup.cut"].value) == (False, 1)
    assert family_table([cut]).splitlines()[2].split(" | ")[-2:] == ["all cut    ", "all cut  |"]


def test_speed_metrics_do_without_independent_prompts():
    assert "speedup.realised.independent" not in by_key(speed_metrics(RECORDS[2:]))


def test_several_timed_runs_count_by_their_median():
    record = answer(True, 4.0, 1.0, 100, 25)
    record["twin"]["seconds"] = [9.0, 2.0, 3.0]
    assert by_key(speed_metrics([record]))["step_ms.twin"].value == pytest.approx(30.0)


def test_statements_are_counted_over_all_prompts():
    metrics = by_key(quality_metrics(RECORDS))
    assert metrics["statements.twin"].value == 1.0
    assert metrics["statements.pasta"].value == pytest.approx(10 / 12)
    assert metrics["statements.ratio"].value == pytest.approx(10 / 12)
    assert metrics["structure.annotated"].value == 1.0
    assert metrics["well_formed.shipped"].passed


def test_a_malformed_output_and_a_cut_one_show():
    broken = answer(True, 1.0, 1.0, 10, 10)
    broken["pasta"] |= {"fault": "token 3: promise without '/>'", "finish_reason": "length"}
    metric = by_key(quality_metrics([*RECORDS, broken]))["well_formed.shipped"]
    assert metric.value == 0.75
    assert not metric.passed
    assert metric.note == "1 cut at the length limit"


def test_the_family_table_puts_independent_families_first_and_shows_no_parts_where_there_are_none():
    lines = family_table(RECORDS).splitlines()
    assert lines[0].startswith("| family")
    assert "realised" in lines[0]
    assert lines[2].startswith("| profiles")
    assert "none to mark" in lines[3]


def test_a_family_table_without_times_has_no_realised_column():
    untimed = [{name: value for name, value in record.items() if name != "realised"} for record in RECORDS]
    assert "realised" not in family_table(untimed)


def test_replay_metrics_are_over_documents():
    records = [{"realised": 1.9, "theoretical": 2.0}, {"realised": 2.0, "theoretical": 2.0}]
    metrics = by_key(replay_metrics(records, "llama-400m", "llama-400m, bfloat16"))
    assert metrics["replay.ratio.llama-400m"].value == pytest.approx(0.95**0.5)
    assert metrics["replay.ratio.llama-400m"].passed


def test_a_lane_ratio_is_the_median_over_rounds_of_each_rounds_medians():
    rounds = [{"1": [1.0, 1.0, 9.0], "8": [1.2, 1.2]}, {"1": [2.0], "8": [2.2]}, {"1": [1.0], "8": [9.0]}]
    assert lane_ratio(rounds, 8) == pytest.approx(1.2)
    (metric,) = lane_metrics(rounds, (1, 8), "shipped", "shipped model", 1.5)
    assert metric.sense == "at most"
    assert metric.passed


def test_the_rate_against_generate_is_a_mean_of_ratios():
    records = [
        {"engine": [10, 1.0], "dynamic": [10, 2.0], "static": [10, 1.0]},
        {"engine": [10, 1.0], "dynamic": [10, 8.0], "static": [10, 1.0]},
    ]
    metrics = by_key(generate_metrics(records, "shipped", "shipped model", 1.3))
    assert metrics["generate.shipped.dynamic"].value == pytest.approx(4.0)
    assert metrics["generate.shipped.static"].value == pytest.approx(1.0)
    assert not metrics["generate.shipped.static"].passed


def test_a_target_is_met_in_its_own_direction():
    assert Metric("a", "a", 1.5, 1.5).passed
    assert Metric("a", "a", 1.6, 1.5, "at most").passed is False
    assert Metric("a", "a", 1.6).passed is None


def test_a_single_value_has_no_interval():
    assert Metric.of("x", "x", bootstrap([1.5])).low is None
    assert Metric.of("x", "x", bootstrap([1.5, 1.2])).low is not None


def test_the_table_shows_interval_target_and_verdict():
    metric = Metric.of("a", "speedup", Estimate(2.0, 1.9, 2.1, 5, 5), target=2.2, note="5 prompts")
    (_, _, row) = metrics_table([metric]).splitlines()
    assert row.split(" | ")[0].startswith("| speedup")
    assert [cell.strip() for cell in row.split("|")[2:6]] == [
        "2.000",
        "1.900 to 2.100",
        "at least 2.2",
        "**no**",
    ]


def test_a_table_escapes_its_own_separator():
    assert markdown(["a"], [["x|y"]]).splitlines()[2] == "| x\\|y |"
