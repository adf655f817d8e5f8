"""Win rates: AlpacaEval's raw one, and the rate at equal length by a model without the difficulty term."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.errors import UserError
from pasta.evaluation.results.win_rate import (
    NO_LENGTHS,
    ONE_SIDED,
    SEPARABLE,
    Preference,
    preferences_of,
    win_rates,
)

#: Probabilities a judge gives with token log-probabilities: neither certain nor at a fixed step.
shares = st.floats(0.01, 0.99)
lengths = st.integers(1, 4000)
verdicts = st.builds(Preference, shares, lengths, lengths)
many = st.lists(verdicts, min_size=4, max_size=30)
FEW = settings(max_examples=25, deadline=None)


def controlled(items):
    return win_rates(items).length_controlled_without_difficulty


def generated(theta, phi, deltas):
    """Verdicts that follow the model exactly."""
    mean = sum(deltas) / len(deltas)
    std = math.sqrt(sum((delta - mean) ** 2 for delta in deltas) / (len(deltas) - 1))
    return [
        Preference(1 / (1 + math.exp(-theta - phi * math.tanh(delta / std))), 1000 + delta, 1000)
        for delta in deltas
    ]


def test_the_raw_rate_is_the_mean_probability_in_percent():
    rates = win_rates([Preference(p, 10, 10) for p in (0.0, 0.5, 1.0, 0.9)])
    assert rates.raw.value == pytest.approx(60.0)
    assert rates.raw.low < 60.0 < rates.raw.high
    assert rates.standard_error == pytest.approx(100 * 0.45460606 / 2)


def test_invalid_verdicts_are_counted_and_left_out():
    valid = [Preference(p, n, 300) for p, n in ((0.2, 100), (0.7, 400), (0.4, 500), (0.6, 200))]
    with_invalid = win_rates([*valid, Preference(None, 9999, 1)])
    assert (with_invalid.count, with_invalid.invalid) == (4, 1)
    assert with_invalid.raw == win_rates(valid).raw
    assert with_invalid.mean_length == 300


def test_no_valid_verdict_is_no_win_rate():
    with pytest.raises(UserError, match="none of 2 verdicts is valid"):
        win_rates([Preference(None, 1, 1)] * 2)


def test_a_probability_is_from_0_to_1():
    with pytest.raises(ValueError, match=r"preference 1\.5: expected a probability"):
        Preference(1.5, 1, 1)


@pytest.mark.parametrize(("theta", "phi"), [(0.0, 0.0), (-1.0, 2.0), (0.7, -0.5)])
def test_the_model_that_made_the_verdicts_is_found(theta, phi):
    rates = win_rates(generated(theta, phi, [-900, -350, -20, 40, 110, 600, 1500]))
    assert rates.length_controlled_without_difficulty.value == pytest.approx(100 / (1 + math.exp(-theta)))
    assert rates.length_effect == pytest.approx(phi, abs=1e-6)


def test_length_that_wins_verdicts_is_taken_out():
    rates = win_rates(generated(0.0, 2.0, [100, 200, 400, 800, 900, 1000]))
    assert rates.raw.value > 70
    assert rates.length_controlled_without_difficulty.value == pytest.approx(50.0)


@FEW
@given(st.lists(st.tuples(st.floats(0, 1), lengths), min_size=1, max_size=20))
def test_at_equal_lengths_it_is_the_raw_rate(items):
    rates = win_rates([Preference(share, length, length) for share, length in items])
    assert rates.length_controlled_without_difficulty == rates.raw
    assert rates.length_effect is None


@pytest.mark.slow
@FEW
@given(many)
def test_the_baseline_s_rate_is_the_rest(items):
    swapped = [Preference(1 - v.preference, v.baseline_length, v.length) for v in items]
    here, there = win_rates(items), win_rates(swapped)
    assert here.raw.value + there.raw.value == pytest.approx(100)
    one, other = here.length_controlled_without_difficulty, there.length_controlled_without_difficulty
    assert (one.value is None) == (other.value is None)
    if one.value is not None:
        assert one.value + other.value == pytest.approx(100, abs=1e-4)
        effect = there.length_effect  # of verdicts at nearly equal lengths it may be in the millions
        assert here.length_effect == (None if effect is None else pytest.approx(effect, rel=1e-6, abs=1e-4))


@pytest.mark.slow
@FEW
@given(many, st.randoms(use_true_random=False))
def test_neither_order_nor_the_unit_of_length_counts(items, rng):
    shuffled = [Preference(v.preference, 7 * v.length, 7 * v.baseline_length) for v in items]
    rng.shuffle(shuffled)
    one, other = controlled(items), controlled(shuffled)
    assert (one.value is None) == (other.value is None)
    if one.value is not None:
        assert one.value == pytest.approx(other.value, abs=1e-4)


@pytest.mark.slow
@FEW
@given(many, st.floats(0.001, 0.5))
def test_better_verdicts_raise_the_raw_rate(items, gain):
    better = [
        Preference(v.preference + gain * (1 - v.preference), v.length, v.baseline_length) for v in items
    ]
    assert win_rates(better).raw.value > win_rates(items).raw.value


@FEW
@given(st.floats(-3, 3), st.floats(0.01, 2), st.floats(-2, 2))
def test_a_better_candidate_has_a_higher_rate_at_equal_length(theta, gain, phi):
    deltas = [-900, -350, -20, 40, 110, 600, 1500]
    assert (
        controlled(generated(theta + gain, phi, deltas)).value
        > controlled(generated(theta, phi, deltas)).value
    )


@FEW
@given(many)
def test_the_interval_holds_no_impossible_rate(items):
    rate = controlled(items)
    if rate.low is not None:
        assert 0 <= rate.low <= rate.high <= 100


def test_one_difference_in_length_everywhere_cannot_be_controlled_for():
    rate = controlled([Preference(p, 110, 100) for p in (0.2, 0.6, 0.9)])
    assert (rate.value, rate.reason) == (None, NO_LENGTHS)


def test_verdicts_that_length_alone_decides_have_no_rate():
    rate = controlled([Preference(float(n > 200), n, 200) for n in (100, 150, 180, 250, 300, 320)])
    assert (rate.value, rate.reason) == (None, SEPARABLE)


def test_wins_everywhere_say_nothing_about_length():
    for every in (1.0, 0.0):
        rates = win_rates([Preference(every, n, 200) for n in (100, 250, 300)])
        assert rates.raw.value == 100 * every
        assert rates.length_controlled_without_difficulty.reason == ONE_SIDED


def test_certain_verdicts_that_overlap_in_length_have_a_rate():
    rate = controlled([Preference(float(n % 3 > 0), 100 + 10 * n, 200) for n in range(40)])
    assert rate.low < rate.value < rate.high


def test_too_many_resamples_without_a_fit_leave_no_interval():
    # One loss among wins: every third resample has none of it.
    items = [Preference(1.0, 100 + n, 110) for n in range(20)] + [Preference(0.0, 108, 110)]
    rate = controlled(items)
    assert rate.value is not None
    assert rate.low is rate.high is None
    assert "of the resamples have no finite solution" in rate.reason


def test_the_same_verdicts_have_the_same_interval():
    items = generated(0.3, 1.0, [-300, -100, 50, 75, 400])
    assert win_rates(items) == win_rates(items)


def test_the_record_names_the_model_for_what_it_is():
    record = win_rates(generated(0.3, 1.0, [-300, -100, 50, 75, 400])).to_record()
    assert {"win_rate", "standard_error", "length_controlled_without_difficulty", "invalid"} <= record.keys()
    assert "length_controlled" not in record


def test_an_evaluation_s_verdicts_are_read_by_prompt():
    records = [
        {"key": "a", "answers": {"twin": {"text": "xx"}, "pasta": {"text": "xxxx"}}},
        {"key": "b", "answers": {"twin": {"text": "x"}, "pasta": {"text": "xxx"}}},
        {"key": "c", "answers": {"twin": {"text": "x"}, "pasta": {"skipped": "too long"}}},
        {"key": "d", "answers": {"twin": {"text": "x"}, "pasta": {"text": "y"}}},
    ]
    said = {
        "a": {"verdicts": {"pasta": {"quality": 0.75}}},
        "b": {"verdicts": {"pasta": {"quality": None, "invalid": "Hm."}}},
    }
    assert preferences_of(records, said, method="pasta", baseline="twin") == [
        Preference(0.75, 4, 2),
        Preference(None, 3, 1),
    ]


def test_a_single_verdict_has_no_interval():
    rates = win_rates([Preference(0.8, 100, 100), Preference(None, 1, 1)])
    for rate in (rates.raw, rates.length_controlled_without_difficulty):
        assert (rate.value, rate.low, rate.high) == (80.0, None, None)
        assert rate.reason == "a single verdict, which resamples to itself"
