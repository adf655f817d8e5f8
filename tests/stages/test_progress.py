"""What a stage says while it goes."""

from typing import Any

import pytest

from pasta.stages import progress
from pasta.stages.progress import Progress
from pasta.tracking import Tracker


class Watched(Tracker):
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, figures: Any, step: int) -> None:
        self.logged.append((step, dict(figures)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is: ``clock[0]``."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_an_earlier_run_found_counts_as_done_but_not_for_the_time_left(clock: list[float]):
    lines: list[str] = []
    stage = Progress("e", 5, "prompts", 2, say=lines.append)
    clock[0] += 60
    stage.add(1, "pasta 2.00x")
    assert lines == [
        "e: 5 prompts, 2 found from an earlier run",
        "e: 3/5 prompts  pasta 2.00x  eta 2.0 min",
    ]


def test_lines_are_two_seconds_apart_but_for_the_first_and_the_last(clock: list[float]):
    lines: list[str] = []
    stage = Progress("e", 5, "rounds", say=lines.append)
    for _ in range(5):
        clock[0] += 0.9
        stage.add()
    assert [line.split("  ")[0] for line in lines] == [
        "e: 5 rounds",
        "e: 1/5 rounds",
        "e: 4/5 rounds",
        "e: 5/5 rounds",
    ]


def test_every_step_is_recorded(clock: list[float]):
    tracker = Watched()
    stage = Progress("e", 4, "prompts", 1, tracker=tracker, job="evaluate", say=lambda line: None)
    stage.add(2, figures={"evaluate/running_speedup/pasta": 2.0})
    stage.add()
    assert tracker.logged == [
        (3, {"evaluate/prompts": 3.0, "evaluate/running_speedup/pasta": 2.0}),
        (4, {"evaluate/prompts": 4.0}),
    ]


def test_a_line_goes_to_standard_output(capsys: pytest.CaptureFixture[str]):
    Progress("e", 1, "prompts").add(1, "done")
    assert capsys.readouterr().out == "e: 1 prompts\ne: 1/1 prompts  done  eta 0.0 min\n"
