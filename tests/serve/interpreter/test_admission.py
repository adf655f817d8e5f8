"""The budget of a model: neither kind of request can shut the other out, some may wait, the rest is refused at once."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.config import AdmissionSettings
from serve.interpreter.admission import MAX_RETRY_AFTER_S, Admission, Overloaded, TooLarge

SETTINGS = AdmissionSettings(short_tokens=100, most_of_one_kind=0.75, retry_after_s=3)
WAITING = AdmissionSettings(
    short_tokens=100, most_of_one_kind=0.75, retry_after_s=3, queue={"max_requests": 4, "max_wait_s": 30.0}
)


def admission(configured=SETTINGS, budget=4000, **options):
    return Admission(configured, lambda: budget, budget, **options)


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


async def fill(stack, budget, tokens):
    """Requests of this size until one is refused; how many were taken."""
    taken = 0
    while True:
        try:
            await stack.enter_async_context(budget.hold(tokens))
        except Overloaded:
            return taken
        taken += 1


@pytest.mark.parametrize(("first", "then"), [(1000, 100), (100, 1000)])
def test_each_kind_finds_a_quarter_however_much_there_is_of_the_other(first, then):
    async def scenario():
        async with AsyncExitStack() as stack:
            budget = admission()
            assert await fill(stack, budget, first) * first == 3000
            assert await fill(stack, budget, then) * then == 1000

    run(scenario())


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


async def retry_after(budget, tokens):
    with pytest.raises(Overloaded) as refused:
        async with budget.hold(tokens):
            pass
    return refused.value.retry_after_s


def test_a_refusal_says_when_to_ask_again():
    async def scenario():
        budget = admission()
        async with budget.hold(3000):
            assert await retry_after(budget, 1000) == SETTINGS.retry_after_s, (
                "nothing has ended yet: there is no pace to go by"
            )

    run(scenario())


@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
def test_when_to_ask_again_follows_from_the_pace_at_which_requests_end(idle_s):
    async def scenario():
        clock = Clock()
        budget = admission(clock=clock)
        for _ in range(20):  # 100 tokens a second
            async with budget.hold(1000):
                clock.now += 10
            clock.now += idle_s  # time without anything to do says nothing of the pace
        async with budget.hold(3000):
            assert await retry_after(budget, 1000) == pytest.approx(10, abs=3)
            assert await retry_after(budget, 2000) == pytest.approx(20, abs=6)

    run(scenario())


def test_nobody_is_sent_away_for_hours():
    async def scenario():
        clock = Clock()
        budget = admission(clock=clock)
        async with budget.hold(10):
            clock.now += 1000
        async with budget.hold(3000):
            assert await retry_after(budget, 3000) == MAX_RETRY_AFTER_S

    run(scenario())


def test_what_has_ended_makes_room_however_it_ended():
    async def scenario():
        budget = admission()
        with pytest.raises(ZeroDivisionError):
            async with budget.hold(3000):
                _ = 1 / 0
        async with budget.hold(3000):
            assert sum(budget.held.values()) == 3000
        assert sum(budget.held.values()) == 0

    run(scenario())


def test_a_request_may_turn_out_larger_than_it_looked():
    async def scenario():
        budget = admission()
        async with budget.hold(50) as held:
            await held.resize(2500)
            assert budget.held == {"short": 0, "long": 2500}
            with pytest.raises(TooLarge):
                await held.resize(3001)
            assert budget.held == {"short": 0, "long": 2500}
            async with budget.hold(400):
                with pytest.raises(Overloaded):
                    await held.resize(2700)
        assert budget.held == {"short": 0, "long": 0}

    run(scenario())


def test_what_never_fits_is_not_told_to_try_again():
    async def scenario():
        with pytest.raises(TooLarge) as refused:
            async with admission().hold(3001):
                pass
        assert refused.value.most == 3000

    run(scenario())


# -- the budget follows the Decoders ---------------------------------------------------------------------


def test_the_budget_is_what_it_is_now():
    async def scenario():
        tokens = [4000]
        budget = Admission(SETTINGS, lambda: tokens[0], 4000)
        async with budget.hold(2000):
            tokens[0] = 2000  # half of the Decoders are lost
            assert await retry_after(budget, 900) >= 1
            tokens[0] = 4000
            async with budget.hold(900):
                pass

    run(scenario())


def test_a_request_that_only_all_decoders_have_room_for_is_taken_when_nothing_else_runs():
    async def scenario():
        budget = Admission(SETTINGS, lambda: 1000, 4000)
        async with budget.hold(50):
            assert await retry_after(budget, 3000) >= 1
        async with budget.hold(3000):
            assert await retry_after(budget, 50) >= 1

    run(scenario())


# -- the queue -------------------------------------------------------------------------------------------


async def ask(budget, tokens, log, name, end):
    async with budget.hold(tokens):
        log.append(name)
        await end.wait()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_waits_is_admitted_first_in_first_out():
    async def scenario():
        budget, log = admission(WAITING), []
        ends = {name: asyncio.Event() for name in "abcd"}
        tasks = []
        # b is smaller than a, which waits before it, and would have room.
        for name, tokens in (("a", 2000), ("b", 2500), ("c", 600), ("d", 200)):
            tasks.append(asyncio.create_task(ask(budget, tokens, log, name, ends[name])))
            await settle()
        assert log == ["a"]
        assert budget.num_waiting == {"short": 0, "long": 3}
        ends["a"].set()
        await settle()
        assert log == ["a", "b"]
        ends["b"].set()
        await settle()
        assert log == ["a", "b", "c", "d"]
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks)
        assert budget.held == {"short": 0, "long": 0}

    run(scenario())


def test_a_short_request_does_not_wait_behind_a_long_one():
    async def scenario():
        budget, log, end = admission(WAITING), [], asyncio.Event()
        tasks = [asyncio.create_task(ask(budget, tokens, log, tokens, end)) for tokens in (3000, 2000, 50)]
        await settle()
        assert log == [3000, 50]
        end.set()
        await asyncio.gather(*tasks)

    run(scenario())


def test_beyond_the_queue_a_request_is_refused_at_once_and_may_not_be_repeated():
    async def scenario():
        budget, end = admission(WAITING), asyncio.Event()
        tasks = [asyncio.create_task(ask(budget, 3000, [], n, end)) for n in range(5)]
        await settle()
        with pytest.raises(Overloaded) as refused:
            await budget.take(3000)
        assert not refused.value.waited
        end.set()
        await asyncio.gather(*tasks)

    run(scenario())


def test_who_has_waited_for_too_long_is_refused_and_leaves_no_trace():
    async def scenario():
        impatient = WAITING.model_copy(
            update={"queue": WAITING.queue.model_copy(update={"max_wait_s": 0.01})}
        )
        budget = admission(impatient)
        async with budget.hold(3000):
            with pytest.raises(Overloaded) as refused:
                await budget.take(1000)
            assert refused.value.waited
            assert budget.num_waiting == {"short": 0, "long": 0}
        assert budget.held == {"short": 0, "long": 0}

    run(scenario())


def test_who_waits_is_admitted_when_a_decoder_comes():
    async def scenario():
        tokens, log, end = [2000], [], asyncio.Event()
        budget = Admission(WAITING, lambda: tokens[0], 4000)
        tasks = [asyncio.create_task(ask(budget, 1400, log, n, end)) for n in range(2)]
        await settle()
        assert log == [0]
        tokens[0] = 4000
        budget.admit()
        await settle()
        assert log == [0, 1]
        end.set()
        await asyncio.gather(*tasks)

    run(scenario())


requests = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 6), st.booleans()), max_size=12
)


@settings(deadline=None)
@given(requests)
def test_whoever_comes_grows_or_leaves_nothing_is_held_in_the_end_and_never_too_much(asked):
    async def one(budget, tokens, more, steps, leaves):
        async with budget.hold(tokens) as held:
            assert sum(budget.held.values()) <= 4000
            await asyncio.sleep(0)
            if more:
                await held.resize(more)
            assert sum(budget.held.values()) <= 4000
            for _ in range(steps):
                await asyncio.sleep(0)
            if leaves:
                raise ZeroDivisionError

    async def scenario():
        budget = admission(WAITING)
        tasks = [asyncio.create_task(one(budget, *each)) for each in asked]
        for task, each in zip(tasks, asked, strict=True):
            for _ in range(each[2]):
                await asyncio.sleep(0)
            if each[3] and each[2] % 2:
                task.cancel()
        for task in tasks:
            with suppress(Overloaded, TooLarge, ZeroDivisionError, asyncio.CancelledError):
                await task
        assert budget.held == {"short": 0, "long": 0}
        assert budget.num_waiting == {"short": 0, "long": 0}

    run(scenario())


def test_whoever_is_leaving_the_queue_is_not_admitted_any_more():
    async def scenario():
        budget = admission(WAITING)
        async with budget.hold(3000):
            waits = asyncio.create_task(budget.take(1000))
            await settle()
            waits.cancel()  # it runs again only after the others have ended
        with suppress(asyncio.CancelledError):
            await waits
        assert budget.held == {"short": 0, "long": 0}

    run(scenario())
