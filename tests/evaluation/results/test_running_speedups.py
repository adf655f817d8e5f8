"""Speedups while an evaluation goes: only of prompts that say something."""

from typing import Any

from pasta.evaluation.results.outcomes import RunningSpeedups


def record(twin: float, pasta: float, **changes: Any) -> dict[str, Any]:
    """A prompt with the seconds of both methods, whose critical paths are half a token a second long."""

    def answer(seconds: float) -> dict[str, Any]:
        return {
            "seconds": [seconds],
            "tokens": int(seconds * 100),
            "critical_path": int(seconds * 50),
            "finish_reason": "stop",
        }

    answers = {"twin": answer(twin), "pasta": answer(pasta) | changes}
    return {"key": "tea", "messages": [], "answers": answers}


def after(*records: dict[str, Any], is_timed: bool = True) -> RunningSpeedups:
    speedups = RunningSpeedups("twin", is_timed=is_timed)
    for each in records:
        speedups.count(each)
    return speedups


def test_the_running_speedup_is_the_geometric_mean_over_prompts():
    speedups = after(record(4.0, 1.0), record(1.0, 1.0))
    assert str(speedups) == "pasta 2.00x"
    assert speedups.means() == {"pasta": 2.0}


def test_answers_that_were_cut_or_skipped_have_no_speedup():
    skipped = record(4.0, 1.0)
    skipped["answers"]["pasta"] = {"skipped": "too long"}
    assert str(after(record(4.0, 1.0, finish_reason="length"), skipped)) == ""


def test_without_times_speedups_are_theoretical_and_named_so():
    assert str(after(record(4.0, 1.0, seconds=[]), is_timed=False)) == "pasta 8.00x  (theoretical)"
