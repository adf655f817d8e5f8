"""The budget: what is beyond it is refused at once, and neither kind of request can shut the other out."""

from contextlib import ExitStack

import pytest

from serve.admission import Admission, Overloaded, TooLarge
from serve.config import AdmissionSettings

SETTINGS = AdmissionSettings(short_tokens=100, most_of_one_kind=0.75, retry_after_s=3)


def admission():
    return Admission(SETTINGS, 4000)


def fill(stack, budget, tokens):
    """Requests of this size until one is refused; how many were taken."""
    taken = 0
    while True:
        try:
            stack.enter_context(budget.hold(tokens))
        except Overloaded:
            return taken
        taken += 1


@pytest.mark.parametrize(("first", "then"), [(1000, 100), (100, 1000)])
def test_each_kind_finds_a_quarter_however_much_there_is_of_the_other(first, then):
    with ExitStack() as stack:
        budget = admission()
        assert fill(stack, budget, first) * first == 3000
        assert fill(stack, budget, then) * then == 1000


def test_a_refusal_says_when_to_ask_again():
    budget = admission()
    with budget.hold(3000), pytest.raises(Overloaded) as refused, budget.hold(1000):
        pass
    assert refused.value.retry_after_s == 3


def test_what_has_ended_makes_room_however_it_ended():
    budget = admission()
    with pytest.raises(ZeroDivisionError), budget.hold(3000):
        _ = 1 / 0
    with budget.hold(3000):
        assert sum(budget.held.values()) == 3000
    assert sum(budget.held.values()) == 0


def test_what_never_fits_is_not_told_to_try_again():
    with pytest.raises(TooLarge) as refused, admission().hold(3001):
        pass
    assert refused.value.most == 3000
