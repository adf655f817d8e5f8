"""How long the event loop was held."""

import asyncio
import time

import pytest

from serve.observe import event_loop
from serve.observe.event_loop import Held, LoopWatch


def watched(scenario):
    """What is remembered after a scenario."""

    async def run():
        watch = LoopWatch()
        task = asyncio.create_task(watch.watch())
        await asyncio.sleep(0.03)
        await scenario()
        await asyncio.sleep(0.03)
        task.cancel()
        return watch.longest()

    return asyncio.run(run())


async def computes():
    until = time.thread_time() + 0.08
    while time.thread_time() < until:
        pass


async def blocks():
    time.sleep(0.08)


async def waits():
    await asyncio.sleep(0.08)


def test_a_callback_that_computes_is_late_and_busy():
    found = watched(computes)
    assert found.late_s > 0.06
    assert 0.08 <= found.busy_s < 0.2


def test_a_callback_that_blocks_is_late_alone():
    found = watched(blocks)
    assert found.late_s > 0.06
    assert found.busy_s < 0.05


def test_waiting_holds_nothing():
    assert watched(waits).busy_s < 0.05


@pytest.mark.parametrize(
    ("later", "longest"), [(3, 0.5), (event_loop.WINDOW_S - 1, 0.5), (event_loop.WINDOW_S, 0.0)]
)
def test_a_hold_is_forgotten_after_a_while(later, longest, monkeypatch):
    watch = LoopWatch()
    watch._note(100, Held(0.25, 0.5))
    watch._note(100, Held(0.5, 0.25))
    monkeypatch.setattr(time, "perf_counter", lambda: 100.9 + later)
    assert watch.longest() == Held(longest, longest)
