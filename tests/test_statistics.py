"""Groups, means and intervals."""

import math

import pytest

from pasta.statistics import (
    bootstrap,
    bootstrap_mean,
    geometric_mean,
    grouped,
    percentile,
    ratio_of_sums,
    resamples,
)


def test_groups_come_in_the_order_of_their_first_items_and_what_has_no_key_is_in_none():
    assert grouped("bandana!", lambda c: c if c.isalpha() else None) == {
        "b": ["b"],
        "a": ["a", "a", "a"],
        "n": ["n", "n"],
        "d": ["d"],
    }
    assert [*grouped("cab", str)] == ["c", "a", "b"]


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)


def test_percentiles_are_linear_between_members_in_whatever_order():
    assert percentile([4.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert percentile([0.0, 1.0], 0.9) == pytest.approx(0.9)
    assert percentile([7.0], 0.99) == 7.0


def test_an_interval_holds_its_value_and_is_always_the_same():
    values = [1.0 + 0.1 * (i % 7) for i in range(40)]
    first = bootstrap(values)
    resamples.cache_clear()
    assert first == bootstrap(values)
    assert first.low < first.value < first.high
    assert first.value == pytest.approx(geometric_mean(values))
    assert first.count == 40


def test_an_interval_narrows_with_more_values():
    few, many = ([1.0, 2.0, 3.0] * n for n in (3, 60))
    width = [estimate.high - estimate.low for estimate in (bootstrap(few), bootstrap(many))]
    assert width[1] < width[0] / 2


def test_equal_values_have_an_interval_of_no_width():
    estimate = bootstrap([2.5] * 10)
    assert (estimate.low, estimate.high) == pytest.approx((2.5, 2.5))


def test_an_arithmetic_mean_may_be_of_differences():
    estimate = bootstrap_mean([-1.0, 0.0, 1.0, 2.0])
    assert estimate.value == 0.5
    assert estimate.low < 0.0 < 0.5 < estimate.high
    assert estimate.count == 4


def test_both_means_draw_the_same_prompts():
    """So intervals of speed and of quality over the same prompts belong together."""
    values = [1.0 + 0.1 * (i % 7) for i in range(40)]
    geometric, arithmetic = bootstrap(values), bootstrap_mean([math.log(value) for value in values])
    assert (math.log(geometric.low), math.log(geometric.high)) == pytest.approx(
        (arithmetic.low, arithmetic.high)
    )


def test_a_ratio_of_sums_weighs_by_size():
    assert ratio_of_sums([(1, 1), (0, 3)]) == 0.25
    assert ratio_of_sums([]) == 0.0
