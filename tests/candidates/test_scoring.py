"""Scores follow the formula, best and worst make a pair, and what makes none is counted."""

import itertools
import math

import pytest

from pasta.candidates.scoring import (
    DROPPED,
    UNSCORED,
    ScoreConfig,
    ScoreSummary,
    choose_pair,
    no_pairs,
    score_of,
    scored,
    write_scores,
)
from pasta.config import ConfigError, parse_config
from pasta.errors import UserError
from pasta.judges import judge_records
from pasta.judges.grader import GraderJudge
from pasta.stages.shards import iter_records, read_shard, write_shard
from tests.support.samples import candidate, record, sample_stage, tasks, variations

TASKS = tasks(4)
GAP = 1e-6


def scores_of(entry, weight):
    (judged,) = judge_records(GraderJudge(), [entry])
    return scored(entry, judged["verdicts"], weight)


def test_the_score_is_speedup_and_weighted_quality_or_quality_alone():
    assert score_of(1.5, 0.5, 4.0) == 3.5
    assert score_of(1.5, 0.5, math.inf) == 0.5
    assert score_of(1.5, 0.5, 0.0) == 1.5


def test_speedup_is_the_twin_s_tokens_over_the_candidate_s_critical_path():
    entry = record(TASKS[0], variations(TASKS[0]))
    sequential, threads, *_ = scores_of(entry, 4.0)["candidates"]
    assert sequential["speedup"] == pytest.approx(entry["twin"]["num_tokens"] / sequential["critical_path"])
    assert threads["speedup"] > 1 > 0.95 * sequential["speedup"]
    assert threads["score"] == threads["speedup"] + 4.0


@pytest.mark.parametrize("weight", [8.0, math.inf])
def test_best_and_worst_make_the_pair(weight):
    entry = record(TASKS[0], variations(TASKS[0]))
    scores = scores_of(entry, weight)
    pair, dropped = choose_pair(entry, scores, GAP, weight)
    assert dropped == ""
    assert pair["chosen"] == entry["candidates"][1]["annotated"]
    assert pair["rejected"] == entry["candidates"][2]["annotated"]
    assert pair["chosen_ids"] == entry["candidates"][1]["response_ids"]
    assert pair["chosen_score"] > pair["rejected_score"]
    assert pair["chosen_quality"] == 1.0
    assert pair["messages"] == entry["messages"]
    assert pair["num_candidates"] == 3


def test_with_weight_inf_speed_decides_among_answers_of_one_quality():
    sequential, threads = variations(TASKS[0])[:2]
    entry = record(TASKS[0], [sequential, threads])
    pair, _ = choose_pair(entry, scores_of(entry, math.inf), GAP, math.inf)
    assert (pair["chosen"], pair["rejected"]) == (threads["annotated"], sequential["annotated"])
    assert pair["chosen_score"] == pair["rejected_score"] == 1.0


def test_with_weight_inf_speed_decides_if_no_two_scores_differ_by_the_gap():
    answers = [
        candidate(TASKS[0].document) | {"annotated": name, "critical_path": steps}
        for name, steps in (("good", 100), ("fast", 50), ("slow", 125))
    ]
    entry = record(TASKS[0], answers)
    entry["twin"] = entry["twin"] | {"num_tokens": 100}
    scores = scored(entry, [{"quality": quality} for quality in (0.95, 0.92, 0.9)], math.inf)
    named = {
        gap: (pair["chosen"], pair["rejected"]) if pair is not None else dropped
        for gap in (0.01, 0.1, 2.0)
        for pair, dropped in [choose_pair(entry, scores, gap, math.inf)]
    }
    assert named == {0.01: ("good", "slow"), 0.1: ("fast", "slow"), 2.0: "ties"}


def test_with_weight_inf_a_better_answer_goes_before_a_faster_one():
    sequential, _, half = variations(TASKS[0])[:3]
    entry = record(TASKS[0], [half | {"critical_path": 1}, sequential])
    pair, _ = choose_pair(entry, scores_of(entry, math.inf), GAP, math.inf)
    assert pair["chosen"] == sequential["annotated"]


def test_parallelism_pays_for_tokens_that_nobody_asked_for():
    threads = variations(TASKS[0])[1]
    padded = threads | {"num_tokens": 10 * threads["num_tokens"]}
    entry = record(TASKS[0], [threads, padded])
    (judged,) = judge_records(GraderJudge(), [entry])
    by_speed = {
        speed: [c["score"] for c in scored(entry, judged["verdicts"], 1.0, speed)["candidates"]]
        for speed in ("speedup", "parallelism")
    }
    assert by_speed["speedup"][0] == by_speed["speedup"][1]
    assert by_speed["parallelism"][1] > 5 * by_speed["parallelism"][0]


def test_speed_as_written_gains_nothing_by_leaving_text_out():
    threads = variations(TASKS[0])[1]
    whole = threads | {"num_tokens": 120, "text_tokens": 102, "critical_path": 50}
    few_words = threads | {"num_tokens": 8, "text_tokens": 8, "critical_path": 8}
    tags_instead = threads | {"num_tokens": 100, "text_tokens": 60, "critical_path": 40}
    entry = record(TASKS[0], [whole, few_words, tags_instead])
    entry["twin"] = entry["twin"] | {"num_tokens": 100}
    (judged,) = judge_records(GraderJudge(), [entry])
    candidates = scored(entry, judged["verdicts"], 1.0, "written")["candidates"]
    assert [c["speed"] for c in candidates] == [2.0, 1.0, 1.5]
    assert [c["speedup"] for c in candidates] == [2.0, 12.5, 2.5]


def test_samples_that_do_not_tell_text_from_tags_have_no_speed_as_written():
    entry = record(TASKS[0], variations(TASKS[0]))
    for each in entry["candidates"]:
        del each["text_tokens"]
    (judged,) = judge_records(GraderJudge(), [entry])
    assert scored(entry, judged["verdicts"], 1.0)["candidates"][0]["score"]
    with pytest.raises(UserError, match=r"^speed: written: the samples of \w+ do not say their text_tokens"):
        scored(entry, judged["verdicts"], 1.0, "written")


def test_what_is_no_answer_has_no_score():
    scores = scores_of(record(TASKS[0], variations(TASKS[0])), 4.0)
    assert [entry.get("unscored") for entry in scores["candidates"]] == [None, None, None, "cut", "empty"]


def test_groups_without_a_pair_are_told_apart():
    task, summary = TASKS[0], ScoreSummary()
    threads, half = candidate(task.document), variations(task)[2]
    groups = {
        "too_few": record(task, [threads, candidate(task.document, "length")]),
        "identical": record(task, [threads, threads]),
        "baseline_cut": record(task, [threads, half], twin_reason="length"),
        "skipped": {"id": "x", "messages": task.messages, "skipped": "too long"},
        "ties": record(task, [variations(task)[0], threads]),
    }
    for expected, entry in groups.items():
        scores = scores_of(entry, math.inf)
        pair, dropped = choose_pair(entry, scores, 100.0 if expected == "ties" else GAP, math.inf)
        assert (pair, dropped) == (None, expected)
        summary.add(scores, pair, dropped)
    figures = summary.figures()
    assert {key: figures[key] for key in groups} == dict.fromkeys(groups, 1.0)
    assert figures["prompts"] == 5
    assert figures["pairs"] == 0
    assert (figures["cut"], figures["invalid"], figures["empty"]) == (1, 0, 0)


def test_an_invalid_verdict_is_counted_and_never_a_score():
    entry = record(TASKS[0], variations(TASKS[0])[:3])
    verdicts = [{"quality": 1.0}, {"quality": None, "invalid": "well"}, {"quality": 0.0}]
    scores = scored(entry, verdicts, 1.0)
    assert scores["candidates"][1]["unscored"] == "invalid"
    assert scores["candidates"][1]["invalid"] == "well"
    summary = ScoreSummary()
    summary.add(scores, *choose_pair(entry, scores, GAP, 1.0))
    assert summary.figures()["invalid"] == 1
    assert summary.figures()["pairs"] == 1


def test_the_histogram_counts_every_score():
    summary = ScoreSummary()
    for task in TASKS:
        entry = record(task, variations(task))
        scores = scores_of(entry, 4.0)
        summary.add(scores, *choose_pair(entry, scores, GAP, 4.0))
    rows = summary.histogram()
    assert sum(count for *_, count in rows) == 12
    assert rows[0][0] == min(summary.scores)
    assert rows[-1][1] == pytest.approx(max(summary.scores))
    assert all(before[1] == pytest.approx(after[0]) for before, after in itertools.pairwise(rows))


def test_a_stage_s_files_hold_every_candidate_and_one_pair_a_line(tmp_path):
    records = [record(task, variations(task)) for task in TASKS]
    samples = sorted(sample_stage(tmp_path / "samples", records).glob("samples-*.jsonl"))
    verdicts, work = tmp_path / "verdicts", tmp_path / "work"
    verdicts.mkdir(), work.mkdir()
    for number, path in enumerate(samples):
        write_shard(verdicts, "verdicts", number, judge_records(GraderJudge(), read_shard(path)))
    figures, _ = write_scores(samples, verdicts, work, weight=4.0, min_gap=GAP)
    assert figures["pairs"] == 4
    assert figures["mean_chosen_quality"] == 1.0
    scores = list(iter_records(sorted(work.glob("scores-*.jsonl"))))
    assert [entry["id"] for entry in scores] == [entry["id"] for entry in records]
    assert all(len(entry["candidates"]) == 5 for entry in scores)
    assert len((work / "pairs.jsonl").read_text().splitlines()) == 4
    with pytest.raises(UserError, match="its verdicts are not those of"):
        write_scores(samples[::-1], verdicts, work, weight=4.0, min_gap=GAP)


CONFIG = {"name": "x", "output_dir": "o", "samples": "s", "judge": {"kind": "grader"}, "quality_weight": 1}


@pytest.mark.parametrize("invalid", [0, 6])
def test_where_verdicts_are_invalid_a_stage_without_pairs_says_how_to_ask_again(tmp_path, invalid):
    figures = dict.fromkeys((*DROPPED, *UNSCORED), 0.0) | {"prompts": 8.0, "too_few": 8.0, "invalid": invalid}
    assert ("jobs.score --rejudge" in no_pairs(figures, tmp_path)) == bool(invalid)


@pytest.mark.parametrize("weight", [1, 2, 4, 8, "inf", math.inf])
def test_the_paper_s_weights_are_taken(weight):
    assert parse_config(CONFIG | {"quality_weight": weight}, ScoreConfig, "c").weight == float(weight)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quality_weight": -1}, "quality_weight -1.0: expected 0 or more, or inf"),
        ({"quality_weight": "much"}, "quality_weight"),
        ({"judge": {"kind": "reward"}}, "reward: expected a section of this name with kind: reward"),
        ({"judge": {"kind": "grader", "reward": {"model": "x"}}}, "and only then"),
        ({"judge": {"kind": "oracle"}}, "judge.kind: expected 'grader', 'teacher' or 'reward'"),
        ({"min_gap": 0.0}, "min_gap 0.0: expected a positive number"),
    ],
)
def test_a_wrong_configuration_is_one_line(changes, expected):
    with pytest.raises(ConfigError) as error:
        parse_config(CONFIG | changes, ScoreConfig, "c.yaml")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
