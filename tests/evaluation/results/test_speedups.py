"""Speedups follow from the records of two answers."""

from pasta.evaluation.results.speedups import realised_speedup, theoretical_speedup


def test_speedups_are_the_baseline_s_over_the_answer_s():
    baseline = {"seconds": [2.0, 9.0, 3.0], "tokens": 120}
    assert realised_speedup(baseline, {"seconds": [1.5]}) == 2.0
    assert theoretical_speedup(baseline, {"critical_path": 40}) == 3.0
    assert theoretical_speedup(baseline, {"critical_path": None}) is None
