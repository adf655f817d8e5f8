"""Rewards against values worked out by hand."""

import pytest

from pasta.rl.config import RewardSection
from pasta.rl.rewards import group_rewards, reward_of, rewarded
from pasta.stages.records import Record


def answered(speedup: float, quality: float) -> dict[str, float]:
    return {"speedup": speedup, "speed": speedup, "quality": quality}


def the_one_answer(
    tokens: int, path: int, twin_tokens: int, verdict: Record, section: RewardSection
) -> Record:
    """An answer of ``tokens`` tokens and this critical path, rewarded beside a twin's of ``twin_tokens``."""
    candidate = {
        "annotated": "a",
        "finish_reason": "stop",
        "num_tokens": tokens,
        "text_tokens": tokens,
        "critical_path": path,
    }
    record = {
        "id": "x",
        "messages": [],
        "twin": {"text": "b", "num_tokens": twin_tokens, "finish_reason": "stop"},
        "candidates": [candidate],
    }
    (answer,) = rewarded(record, [verdict], section)
    return answer


def test_speed_and_quality_are_weighed_by_lambda():
    section = RewardSection(quality_weight=4, min_quality=0.5)
    assert reward_of(1.5, 0.75, section) == pytest.approx((1.5 + 4 * 0.75) / 5)


def test_speed_of_a_wrong_answer_does_not_count():
    section = RewardSection(quality_weight=4, min_quality=0.8)
    assert reward_of(3.0, 0.75, section) == pytest.approx(4 * 0.75 / 5)


def test_without_a_weight_speed_is_all_that_counts():
    assert reward_of(1.5, 1.0, RewardSection(quality_weight=0)) == pytest.approx(1.5)


def test_quality_alone_counts_with_an_infinite_weight():
    section = RewardSection(quality_weight="inf", min_quality=0.5)
    assert group_rewards([answered(3.0, 0.5), answered(1.0, 1.0)], section) == [0.5, 1.0]


def test_speed_decides_among_equals_with_an_infinite_weight():
    section = RewardSection(quality_weight="inf", min_quality=0.5)
    assert group_rewards([answered(3.0, 1.0), answered(1.0, 1.0)], section) == [3.0, 1.0]
    assert group_rewards([answered(3.0, 0.2), answered(1.0, 0.2)], section) == [0.0, 0.0]


def test_a_cut_answer_earns_nothing_and_one_without_a_verdict_has_no_reward():
    section = RewardSection(quality_weight=1, min_quality=0.0)
    entries = [
        answered(2.0, 1.0),
        {"speedup": 9.0, "speed": 9.0, "unscored": "cut"},
        {"speedup": 2.0, "speed": 2.0, "unscored": "invalid"},
    ]
    assert group_rewards(entries, section) == [1.5, 0.0, None]


def test_a_record_gets_speedup_quality_and_wrong_statements():
    section = RewardSection(quality_weight=1, min_quality=0.5)
    answer = the_one_answer(8, 4, 6, {"quality": 0.75, "right": 3, "total": 4}, section)
    assert (answer["speedup"], answer["quality"], answer["wrong"]) == (1.5, 0.75, 1)
    assert answer["reward"] == pytest.approx((1.5 + 0.75) / 2)


def test_speed_as_written_earns_nothing_for_text_that_is_left_out():
    section = RewardSection(quality_weight=1, speed="written", min_quality=0)
    answer = the_one_answer(3, 3, 60, {"quality": 0.5}, section)
    assert answer["speedup"] == 20
    assert answer["reward"] == pytest.approx((1 + 0.5) / 2)
