"""What an evaluation says while it goes: only of prompts that say something, and of earlier runs too."""

from typing import Any

import pytest

from pasta.evaluation.progress import DecodeProgress, VerdictProgress
from pasta.tracking import Tracker


class Watched(Tracker):
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, figures: Any, step: int) -> None:
        self.logged.append((step, dict(figures)))


def record(twin: float, pasta: float, **changes: Any) -> dict[str, Any]:
    """A prompt with the seconds of both methods, whose critical paths are half a token a second long."""

    def answer(seconds: float) -> dict[str, Any]:
        return {
            "seconds": [seconds],
            "tokens": int(seconds * 100),
            "critical_path": int(seconds * 50),
            "finish_reason": "stop",
        }

    return {"answers": {"twin": answer(twin), "pasta": answer(pasta) | changes}}


def test_the_running_speedup_is_over_all_prompts_earlier_runs_included(capsys: pytest.CaptureFixture[str]):
    tracker = Watched()
    progress = DecodeProgress("e", 3, "twin", [record(4.0, 1.0)], 1, tracker)
    progress.add(record(1.0, 1.0))
    out = capsys.readouterr().out
    assert "e: 3 prompts to decode, 1 found from an earlier run" in out
    assert "e: 2/3 prompts  pasta 2.00x  eta" in out
    assert tracker.logged == [(2, {"evaluate/prompts": 2.0, "evaluate/running_speedup/pasta": 2.0})]


def test_answers_that_were_cut_or_skipped_have_no_speedup(capsys: pytest.CaptureFixture[str]):
    progress = DecodeProgress("e", 3, "twin", [record(4.0, 1.0, finish_reason="length")], 1, Tracker())
    skipped = record(4.0, 1.0)
    skipped["answers"]["pasta"] = {"skipped": "too long"}
    progress.add(skipped)
    assert "e: 2/3 prompts  eta" in capsys.readouterr().out


def test_without_times_speedups_are_theoretical_and_named_so(capsys: pytest.CaptureFixture[str]):
    progress = DecodeProgress("e", 1, "twin", [], 0, Tracker())
    progress.add(record(4.0, 1.0, seconds=[]))
    assert "e: 1/1 prompts  pasta 8.00x  (theoretical)  eta" in capsys.readouterr().out


def test_invalid_verdicts_are_counted_and_shown(capsys: pytest.CaptureFixture[str]):
    earlier = [{"verdicts": {"pasta": {"quality": None, "invalid": "Both."}}}]
    progress = VerdictProgress("e", 2, earlier)
    progress.add(
        [{"verdicts": {"twin": {"quality": 0.5}, "pasta": {"quality": 1.0}}}], {"judge_requests": 2.0}
    )
    assert "e: judged 2/2 prompts  1 of 3 verdicts invalid  requests 2  eta" in capsys.readouterr().out
    assert progress.figures() == {"judge_requests": 2.0, "judge_verdicts": 3.0, "judge_invalid": 1.0}
