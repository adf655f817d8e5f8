"""How many drafts are fed: as many as pay, where padded rows are free and the heads' own time is not."""

import random
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pasta.engine import Engine, EngineConfig, Request, drafts
from pasta.engine.drafts import Drafted, Place
from pasta.engine.heads import HeadRunner
from pasta.engine.step_cost import StepCost, Worth
from pasta.interpreter import Feed, Limits
from pasta.lang import parse
from tests.engine.test_graphs import captured
from tests.engine.test_heads import made
from tests.support.models import UNRECORDED, tiny

LOADED = tiny()
ONE = range(1)
SIZES = {**UNRECORDED, "num_slots": 1, "slot_tokens": 320}
FEED = Feed(0, 5, 0, 0, wants_logits=True)


class Costs(StepCost):
    """What steps cost, whatever is measured; and the rows of those that were."""

    def __init__(self, fixed, row):
        super().__init__()
        self.known, self.measured = (fixed, row), []

    def add(self, rows, seconds):
        self.measured.append(rows)

    def line(self):
        return self.known


def costing(engine, fixed, row):
    """The engine's drafter, told what steps cost."""
    engine.drafter.cost = Costs(fixed, row)
    return engine.drafter


def draft(odds, guesser=2):
    return Drafted(Place(0, 0, None, None), [7] * len(odds), [guesser] * len(odds), odds)


@pytest.fixture(scope="module")
def plain():
    return Engine(LOADED, EngineConfig(**SIZES))


@pytest.fixture(scope="module")
def padding():
    engine, _ = captured(num_slots=1)
    return engine


def test_without_captured_steps_a_step_costs_what_it_feeds(plain):
    assert [plain.runner.num_rows(ONE, [lanes]) for lanes in (1, 3, 5, 40)] == [1, 3, 5, 40]


def test_a_captured_step_costs_all_rows_of_its_shape():
    engine, _ = captured(num_slots=3)
    assert [engine.runner.num_rows(ONE, [lanes]) for lanes in (1, 3, 5)] == [1, 4, 8]
    assert engine.runner.num_rows(range(1, 2), [3]) == 2 * 4, "slots are counted from the first"
    assert engine.runner.num_rows(range(3), [70] * 3) == 3 * 70, "wider steps are not captured"


def test_a_step_s_cost_is_learnt_by_the_rows_that_it_computed():
    engine, _ = captured(num_slots=2)
    drafter = costing(engine, fixed=1.0, row=0.5)
    ids = [*LOADED.codec.encode_text("a b c d"), LOADED.codec.eos_id]
    asked = [Request([5, 6, n], parallel=False, forced=ids[n:], drafts=False) for n in range(2)]
    list(engine.decode(asked))
    assert set(drafter.cost.measured) == {1, 2}
    engine.runner._graphs._shapes._lanes = [4]  # no narrower ones
    list(engine.decode(asked[:1]))
    assert drafter.cost.measured[-1] == 4


def test_what_a_forward_does_for_the_first_time_is_no_cost_of_its_rows():
    cost = StepCost()
    for rows, seconds in [(5, 0.270), (1, 0.012), (5, 0.022), *[(1, 0.012), (5, 0.022)] * 10]:
        cost.add(rows, seconds)
    fixed, row = cost.line()
    assert fixed == pytest.approx(0.0095, rel=0.05)
    assert row == pytest.approx(0.0025, rel=0.05)


def test_other_work_on_the_machine_is_no_cost_of_the_rows_that_it_slowed():
    cost = StepCost()
    for seconds in [0.012, *[0.012, 0.012, 0.300] * 5]:
        cost.add(1, seconds)
        cost.add(2, 0.013)
    fixed, row = cost.line()
    assert fixed + row == pytest.approx(0.0122, rel=0.02)


def test_a_row_never_seems_to_cost_more_than_a_forward_of_one():
    cost = StepCost()
    for rows, seconds in [(1, 0.01), (1, 0.01), (5, 0.3), (5, 0.3)]:
        cost.add(rows, seconds)
    fixed, row = cost.line()
    assert fixed >= 0
    assert row <= cost.at(1)


@pytest.mark.parametrize(("odds", "counts"), [([0.9] * 2, 2), ([0.3, 0.3], 0)])
def test_drafts_are_fed_while_each_pays_for_its_row(plain, odds, counts):
    drafter = costing(plain, fixed=1.0, row=0.5)
    assert drafter._pays([draft(odds)], {0: [FEED]}, ONE) == [counts]


def test_padding_is_filled_with_drafts_that_would_not_pay_for_rows_of_their_own(plain, padding):
    """Lanes 1, 2, 4, 8 are captured: after two that pay the third is free, and those behind it are not."""
    odds = [0.9, 0.7, 0.1, 0.05, 0.05]
    for engine, counts in ((plain, 2), (padding, 3)):
        drafter = costing(engine, fixed=1.0, row=0.3)
        assert drafter._pays([draft(odds)], {0: [FEED]}, ONE) == [counts]


def test_a_wider_shape_is_taken_when_it_pays_as_a_whole(padding):
    """The fourth row costs as much as the next four together: by itself it would never pay."""
    drafter = costing(padding, fixed=1.0, row=0.1)
    assert drafter._pays([draft([0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65])], {0: [FEED]}, ONE) == [7]
    assert drafter._may_pay({0: [FEED]}, ONE)


# -- draft heads -----------------------------------------------------------------------------------------


@pytest.fixture
def guessing(monkeypatch):
    """Decode a known text with heads that take so many steps' time and are right or not; returns how often they were
    asked, and the steps."""

    def run(cost, right):
        engine = Engine(
            replace(LOADED, heads=HeadRunner(made(), LOADED.model)), EngineConfig(**SIZES, drafts=3)
        )
        ids = LOADED.codec.encode_text("Sphinx of black quartz, judge my vow; pack my box, jug. " * 2)
        ids = [*ids, LOADED.codec.eos_id]
        clock = [0.0]
        times = []
        monkeypatch.setattr(drafts, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

        def guess(hidden, tokens):
            times.append(1)
            clock[0] += cost
            at = len(engine._slots[0].interpreter.threads[0].tokens)
            following = [*ids[at : at + 3], 0, 0, 0][:3] if right else [1, 1, 1]
            return [following], [[0.95, 0.95, 0.95]]

        engine.drafter._heads.guess = guess
        costing(engine, fixed=1.0, row=0.05)
        result = engine.generate(Request([5, 6, 7], parallel=False, forced=ids, limits=Limits()))
        assert list(result.response_ids) == ids
        return len(times), result.steps

    return run


def test_heads_that_cost_more_than_they_save_are_soon_not_asked(guessing):
    asked, steps = guessing(cost=4.0, right=True)
    assert asked < 12
    assert steps > 3 * asked


def test_heads_that_save_more_than_they_cost_are_asked_at_every_step(guessing):
    asked, steps = guessing(cost=0.2, right=True)
    assert asked >= steps - 2


def test_heads_that_are_wrong_are_not_asked_for_long_however_little_they_cost(guessing):
    asked, steps = guessing(cost=0.05, right=False)
    assert asked < 0.7 * steps


# -- through a promise -----------------------------------------------------------------------------------

PROMISES = (
    '<promise topic="a" tokens="20"/><async> one</async><promise topic="b" tokens="20"/><async> two</async>'
)


def knowing(ids, right):
    """An engine whose heads know the main thread of the answer ``ids``, or are always wrong."""
    engine = Engine(replace(LOADED, heads=HeadRunner(made(), LOADED.model)), EngineConfig(**SIZES, drafts=8))
    depth = engine.drafter._heads.shape.depth

    def guess(hidden, tokens):
        own = engine._slots[0].forced[()]
        found = []
        for token in tokens.tolist():
            at = next((n for n, known in enumerate(own) if known == token), None)
            following = [] if at is None or not right else own[at + 1 : at + 1 + depth]
            found.append([*following, *[1] * depth][:depth])
        return found, [[0.95] * depth for _ in found]

    engine.drafter._heads.guess = guess
    costing(engine, fixed=1.0, row=0.0)
    return engine


def asking(ids):
    return Request([5, 6, 7], forced=ids, limits=Limits())


@pytest.mark.parametrize("right", [True, False])
def test_a_draft_goes_through_a_promise_and_loses_no_chunk(right):
    ids = [*LOADED.codec.encode(parse(PROMISES)), LOADED.codec.eos_id]
    expected = Engine(LOADED, EngineConfig(**SIZES, drafts=0)).generate(asking(ids))
    result = knowing(ids, right).generate(asking(ids))
    assert (result.response_ids, result.critical_path) == (expected.response_ids, expected.critical_path)
    assert (result.steps < expected.steps) == right


def test_what_costs_more_than_it_saves_is_tried_one_time_in_64():
    worth = Worth()
    while worth.saved >= 0:
        assert worth.tries()
        worth.learn(-0.2)
    tried = [worth.tries() for _ in range(192)]
    assert [at for at, now in enumerate(tried) if now] == [63, 127, 191]


def test_what_saves_again_is_tried_each_time_again():
    worth = Worth(saved=-0.01)
    worth.learn(1.0)
    assert worth.tries()
    assert worth.tries()


def test_heads_that_guess_a_step_ahead_are_tried_again_too():
    """When drafts are tried, the step before must have guessed."""
    engine = Engine(replace(LOADED, heads=HeadRunner(made(), LOADED.model)), EngineConfig(**SIZES, drafts=3))
    engine.runner.guesses_ahead = True
    drafter = costing(engine, fixed=1.0, row=0.0)
    drafter.cost.weight = 1.0
    drafter._worth = defaultdict(lambda: Worth(saved=-0.01))
    ids = [*random.Random(0).sample(range(40, 256), 200), LOADED.codec.eos_id]

    def guess(chosen):
        first = len(engine._slots[0].interpreter.threads[0].tokens) + 1
        following = [[*ids[at : at + 3], 0, 0, 0][:3] for at in range(first, first + len(chosen))]
        return torch.tensor(following), torch.full((len(chosen), 3), 0.95)

    engine.runner.guess = guess
    result = engine.generate(Request([5, 6, 7], parallel=False, forced=ids, limits=Limits()))
    assert list(result.response_ids) == ids
    assert result.steps < 64 + len(ids) / 2


def test_drafts_that_take_longer_to_find_than_they_save_are_not_looked_for(plain, monkeypatch):
    """Of steps with as many lanes: drafts of others are judged by themselves."""
    drafter = costing(plain, 1e-6, 1e-9)  # nothing can be saved of a step of a microsecond
    drafter.cost.weight = 1.0
    looked = []
    monkeypatch.setattr(drafter, "_found", lambda slots, feeds: looked.append(1) or [])
    monkeypatch.setattr(drafter, "_worth", defaultdict(lambda: Worth(saved=0.0)))
    for _ in range(10):
        drafter.add({}, {0: [FEED]}, ONE)
    assert len(looked) == 1
    drafter.add({}, {0: [FEED, FEED, FEED, FEED]}, ONE)
    assert len(looked) == 2
