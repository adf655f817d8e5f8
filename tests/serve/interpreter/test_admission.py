"""The budget: what is beyond it is refused at once, and neither kind of request can shut the other out."""

from contextlib import ExitStack

import pytest

from serve.config import AdmissionSettings
from serve.interpreter.admission import MAX_RETRY_AFTER_S, Admission, Overloaded, TooLarge

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


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def retry_after(budget, tokens):
    with pytest.raises(Overloaded) as refused, budget.hold(tokens):
        pass
    return refused.value.retry_after_s


def test_a_refusal_says_when_to_ask_again():
    budget = admission()
    with budget.hold(3000):
        assert retry_after(budget, 1000) == SETTINGS.retry_after_s, (
            "nothing has ended yet: there is no pace to go by"
        )


@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
def test_when_to_ask_again_follows_from_the_pace_at_which_requests_end(idle_s):
    clock = Clock()
    budget = Admission(SETTINGS, 4000, clock)
    for _ in range(20):  # 100 tokens a second
        with budget.hold(1000):
            clock.now += 10
        clock.now += idle_s  # time without anything to do says nothing of the pace
    with budget.hold(3000):
        assert retry_after(budget, 1000) == pytest.approx(10, abs=3)
        assert retry_after(budget, 2000) == pytest.approx(20, abs=6)


def test_nobody_is_sent_away_for_hours():
    clock = Clock()
    budget = Admission(SETTINGS, 4000, clock)
    with budget.hold(10):
        clock.now += 1000
    with budget.hold(3000):
        assert retry_after(budget, 3000) == MAX_RETRY_AFTER_S


def test_what_has_ended_makes_room_however_it_ended():
    budget = admission()
    with pytest.raises(ZeroDivisionError), budget.hold(3000):
        _ = 1 / 0
    with budget.hold(3000):
        assert sum(budget.held.values()) == 3000
    assert sum(budget.held.values()) == 0


def test_a_request_may_turn_out_larger_than_it_looked():
    budget = admission()
    with budget.hold(50) as held:
        held.resize(2500)
        assert budget.held == {"short": 0, "long": 2500}
        with pytest.raises(TooLarge):
            held.resize(3001)
        with budget.hold(400), pytest.raises(Overloaded):
            held.resize(2700)
        assert sum(budget.held.values()) == 2500
    assert budget.held == {"short": 0, "long": 0}


def test_what_never_fits_is_not_told_to_try_again():
    with pytest.raises(TooLarge) as refused, admission().hold(3001):
        pass
    assert refused.value.most == 3000
