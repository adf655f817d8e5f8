"""The figures of an evaluation, against what a person works out by hand."""

import json
from dataclasses import asdict

import pytest

from pasta.evaluation.results.summary import summarise_evaluation
from tests.support.evaluations import answer, prompt
from tests.support.judged import evaluation, section, summary_of

METHODS = {"twin": section("sequential"), "pasta": section()}


def summed(*records, verdicts=(), methods=METHODS):
    return summarise_evaluation(records, verdicts, baseline="twin", methods=methods)


def pair(key, twin=None, pasta=None, **values):
    return prompt(key, {"twin": twin or answer(), "pasta": pasta or answer()}, **values)


def thread(start, end, waits=(), parent=None, topic=None):
    return {"start": start, "end": end, "waits": [list(w) for w in waits], "parent": parent, "topic": topic}


def test_a_speedup_is_the_geometric_mean_over_prompts():
    found = summary_of({"twin": [(4.0, 1.0), (1.0, 1.0)], "pasta": [(1.0, 1.0), (1.0, 1.0)]})
    assert found.methods["pasta"].realised.value == pytest.approx(2.0)
    assert found.methods["twin"].realised.value == 1.0


def test_realised_by_theoretical_is_of_the_same_prompts():
    records = [
        pair("a", answer(seconds=[1.8]), answer(critical_path=50)),  # 1.8 of 2
        pair("b", answer(seconds=[2.0], tokens=80), answer(critical_path=20)),  # 2 of 4
    ]
    method = summed(*records).methods["pasta"]
    assert method.theoretical.value == pytest.approx(8**0.5)
    assert method.ratio.value == pytest.approx((0.9 * 0.5) ** 0.5)


def test_quality_is_a_mean_and_its_difference_is_paired():
    table = {"twin": [(1.0, 0.0), (1.0, 1.0)], "pasta": [(1.0, 0.1), (1.0, 1.1 - 1e-9)]}
    method = summary_of(table).methods["pasta"]
    assert method.quality.value == pytest.approx(0.6)
    assert method.quality_difference.value == pytest.approx(0.1)
    # Prompts differ by 1, but each is 0.1 better: the interval has no width.
    assert method.quality_difference.high - method.quality_difference.low < 1e-6
    assert method.quality.high - method.quality.low > 0.5


def test_what_is_missing_is_counted():
    cut = answer(finish_reason="length")
    records = [
        pair("a"),
        pair("b", pasta=cut),
        pair("c", pasta={"skipped": "too long"}),
        pair("d", pasta=answer(fallback="no skeleton")),
        pair("e", twin=cut),
    ]
    verdicts = [
        {"key": "a", "verdicts": {"twin": {"quality": 1.0}, "pasta": {"quality": None, "invalid": "?"}}},
        {"key": "b", "verdicts": {"twin": {"quality": 1.0}, "pasta": {"quality": 0.0}}},
    ]
    found = summed(*records, verdicts=verdicts).methods["pasta"]
    assert (found.prompts, found.skipped, found.cut, found.fallbacks) == (5, 1, 1, 1)
    assert (found.compared, found.judged, found.invalid) == (2, 1, 1)


def test_lanes_and_waits_are_shares_of_steps():
    threads = [
        thread(0, 40, waits=[(10, 30)]),  # decodes 20 steps, waits 20
        thread(5, 30, parent=0, topic="tea"),
        thread(10, 25, parent=0, topic="milk"),
    ]
    structure = summed(pair("a", pasta=answer(critical_path=40, threads=threads))).methods["pasta"].structure
    assert structure.threads == 3
    assert structure.mean_lanes == pytest.approx((20 + 25 + 15) / 40)
    assert structure.waited == pytest.approx(0.5)


def test_overhead_is_the_share_of_tokens_that_are_no_text():
    budgets = ({"text": 80, "promise": 15, "sync": 5}, {"text": 100})
    records = [
        pair(str(n), pasta=answer(tokens=100, budget=budget, ttft_s=0.1 * (n + 1)))
        for n, budget in enumerate(budgets)
    ]
    structure = summed(*records).methods["pasta"].structure
    assert structure.budget == {"text": 90.0, "promise": 7.5, "sync": 2.5}
    assert structure.overhead == pytest.approx(0.1)
    assert structure.ttft_s == pytest.approx(0.15)


def test_an_endpoint_has_tokens_but_no_steps():
    remote = answer(critical_path=None, steps=None, threads=[], ttft_s=None)
    structure = summed(pair("a", pasta=remote)).methods["pasta"].structure
    assert (structure.critical_path, structure.threads, structure.mean_lanes, structure.waited) == (None,) * 4
    assert structure.tokens == 100
    assert structure.ttft_s is None


def test_families_with_independent_parts_come_first():
    records = [
        pair("a", family="shop", independent=False),
        pair("b", family="quiz", independent=True, pasta=answer(seconds=[0.5])),
        pair("c", family="quiz", independent=True, pasta=answer(seconds=[0.5])),
    ]
    families = summed(*records).methods["pasta"].families
    assert [(group.name, group.prompts) for group in families] == [("quiz", 2), ("shop", 1)]
    assert families[0].realised.value == pytest.approx(2.0)
    assert families[1].realised.value == pytest.approx(1.0)


def test_prompts_of_no_family_are_in_none():
    assert summed(pair("a")).methods["pasta"].families == ()


def test_prompts_are_grouped_by_the_baseline_s_length_and_by_own_threads():
    records = [
        pair("a", answer(tokens=50), answer()),
        pair("b", answer(tokens=51), answer(threads=[thread(0, 9), thread(1, 9, parent=0)])),
        pair("c", answer(tokens=100), answer(threads=[thread(0, 9)] * 6)),
        pair("d", answer(tokens=240), answer(threads=[thread(0, 9)] * 8)),
    ]
    method = summed(*records).methods["pasta"]
    assert [(g.name, g.prompts) for g in method.lengths] == [
        ("1–50", 1),
        ("51–75", 1),
        ("76–100", 1),
        ("201–300", 1),
    ]
    assert [(g.name, g.prompts) for g in method.thread_counts] == [("1", 1), ("2", 1), ("5–8", 2)]


def test_without_timed_answers_methods_are_set_against_each_other_by_theoretical_speedup():
    untimed = pair("a", answer(seconds=[]), answer(seconds=[], critical_path=25))
    assert summed(untimed).speed_name == "theoretical"
    assert summed(pair("a")).speed_name == "realised"


def test_win_rates_are_there_for_a_judge_that_compares():
    records = [pair(str(n), pasta=answer("Tea is hot." + n * " Very.")) for n in range(4)]
    verdicts = [
        {"key": str(n), "verdicts": {"twin": {"quality": 0.5}, "pasta": {"quality": q, "orders": [q, q]}}}
        for n, q in enumerate((1.0, 0.0, 1.0, 0.5))
    ]
    found = summed(*records, verdicts=verdicts)
    assert found.pairwise
    assert found.methods["pasta"].win_rates.raw.value == pytest.approx(62.5)
    assert found.methods["twin"].win_rates is None


def test_a_grader_gives_no_win_rates():
    records, verdicts = evaluation({"twin": [(1.0, 0.5)], "pasta": [(1.0, 1.0)]})
    found = summed(*records, verdicts=verdicts)
    assert not found.pairwise
    assert found.methods["pasta"].win_rates is None


def test_the_baseline_comes_first():
    methods = {"a": section(), "twin": section("sequential"), "b": section()}
    assert [*summed(methods=methods).methods] == ["twin", "a", "b"]


def test_nothing_measured_is_no_error():
    for records in ((), (pair("a", twin={"skipped": "x"}, pasta={"skipped": "x"}),)):
        method = summed(*records).methods["pasta"]
        assert (method.realised, method.theoretical, method.quality, method.structure) == (None,) * 4
        assert method.prompts == len(records)


def test_a_summary_is_json():
    found = summary_of({"twin": [(2.0, 1.0)] * 3, "pasta": [(1.0, 1.0)] * 3})
    values = json.loads(json.dumps(asdict(found), allow_nan=False))
    assert values["methods"]["pasta"]["realised"]["value"] == 2.0
    assert values["front"] == ["pasta"]
    assert values["dominations"][0]["worse"] == "twin"


def test_a_judge_that_compares_gives_lines_an_area_too():
    """Its quality is a probability around the baseline's 0.5: above 0.7 there would be none."""
    methods = {"twin": section("sequential"), "a": section(line="a"), "b": section(line="b")}
    answers = {"twin": answer(), "a": answer(seconds=[0.5]), "b": answer(seconds=[0.5])}
    said = {"a": {"quality": 0.45}, "b": {"quality": 0.5}}
    records = [prompt(key, answers) for key in "xyz"]
    found = summed(*records, verdicts=[{"key": key, "verdicts": said} for key in "xyz"], methods=methods)
    assert [entry.area.value for entry in found.areas] == pytest.approx([0.1, 0.15])
