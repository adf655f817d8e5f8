"""Single steps are timed at the number of lanes and the cache length asked for."""

import pytest

from pasta.benchmark.calibrate import Axes, CalibrationBench
from pasta.benchmark.steps import LaneBench
from pasta.engine import TokenEvent
from pasta.errors import UserError
from tests.support.models import tiny

LOADED = tiny()


def test_every_number_of_lanes_is_timed_over_the_same_cache_lengths():
    bench = LaneBench(LOADED, (1, 4), cache_tokens=512)
    seen: dict[int, list[int]] = {1: [], 4: []}
    step = bench.engine.step

    def watched():
        held = bench.engine.runner.num_tokens[0]
        events = step()
        threads = {event.thread for event in events if isinstance(event, TokenEvent)}
        if len(threads) in seen and 416 <= held < 608:
            seen[len(threads)].append(held)
        return events

    bench.engine.step = watched
    record = bench.round()
    assert [len(record[lanes]) for lanes in ("1", "4")] == [192, 48]
    for lanes, lengths in seen.items():
        assert min(lengths) < 416 + lanes
        assert max(lengths) >= 608 - lanes


def test_more_lanes_than_the_cache_length_allows_is_one_clear_line():
    with pytest.raises(UserError, match="--cache-tokens 64: 8 lanes are live only after"):
        LaneBench(LOADED, (1, 8), cache_tokens=64)


def test_a_cache_longer_than_the_model_s_context_is_one_clear_line():
    with pytest.raises(
        UserError, match=r"^--cache-tokens 9000: .*; expected a smaller number, for the model has \d+ p"
    ):
        LaneBench(LOADED, (1, 4), cache_tokens=9000)
    context = LOADED.max_positions
    with pytest.raises(UserError, match=rf"^--cache-tokens {context // 4}: .* has {context} positions$"):
        CalibrationBench(LOADED, Axes((1,), (1,), context // 4))


def test_a_context_too_short_to_calibrate_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(type(LOADED), "max_positions", 128)
    with pytest.raises(UserError, match=r"^calibrate: .* has 128 positions, expected more than 258$"):
        CalibrationBench(LOADED, Axes((1,), (1,), 16))


def test_the_least_cache_length_that_the_message_names_works():
    with pytest.raises(UserError) as caught:
        LaneBench(LOADED, (1, 4), cache_tokens=32)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    LaneBench(LOADED, (1, 4), cache_tokens=least)
