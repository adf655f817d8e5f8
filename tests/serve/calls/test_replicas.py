"""Which Decoders an Interpreter may use while a service is updated."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError

from serve.calls.replicas import CompatibleReplicas, KnownReplicas


def follow(scenario, versions):
    """Run ``scenario(known, usable)`` beside a usable of version new; a replica without a version is lost."""

    async def ask(replica):
        await asyncio.sleep(0)
        if replica not in versions:
            raise RayActorError
        return versions[replica]

    async def run():
        known = KnownReplicas()
        usable = CompatibleReplicas(known, "new", ask)
        following = asyncio.create_task(usable.follow())
        async with asyncio.timeout(10):
            result = await scenario(known, usable)
        following.cancel()
        return result

    return asyncio.run(run())


async def until(usable, condition):
    while not condition():
        await usable.change()


def test_only_replicas_of_the_same_version_are_used():
    async def scenario(known, usable):
        known.update(frozenset("abc"))
        await until(usable, lambda: len(usable.replicas) == 2)
        return usable.replicas

    assert follow(scenario, {"a": "old", "b": "new", "c": "new"}) == {"b", "c"}


def test_a_replica_that_has_not_said_its_version_is_not_used():
    async def scenario(known, usable):
        known.update(frozenset("a"))
        return usable.replicas

    assert follow(scenario, {"a": "new"}) == set()


def test_replicas_come_and_go():
    async def scenario(known, usable):
        known.update(frozenset("a"))
        await until(usable, lambda: usable.replicas)
        known.update(frozenset("ab"))
        await until(usable, lambda: len(usable.replicas) == 2)
        known.update(frozenset("b"))
        return usable.replicas

    assert follow(scenario, {"a": "new", "b": "new"}) == {"b"}


@pytest.mark.parametrize(
    ("versions", "enough"),
    [
        ({}, False),
        ({"a": "old"}, False),
        ({"a": "new"}, True),
        ({"a": "new", "b": "old", "c": "old"}, False),
        ({"a": "new", "b": "new", "c": "old", "d": "old"}, True),
        ({"a": "new", "b": "new", "c": "old"}, True),
    ],
)
def test_there_are_enough_once_other_versions_have_no_more(versions, enough):
    async def scenario(known, usable):
        known.update(frozenset(versions))
        await until(usable, lambda: len(usable._versions) == len(versions))
        return usable.enough

    assert follow(scenario, versions) == enough


def test_it_is_superseded_when_all_replicas_are_of_another_version():
    async def scenario(known, usable):
        seen = [usable.superseded]
        known.update(frozenset("ab"))
        await until(usable, lambda: usable.replicas)
        seen.append(usable.superseded)
        known.update(frozenset("b"))
        await until(usable, lambda: usable.superseded)
        return seen

    assert follow(scenario, {"a": "new", "b": "old"}) == [False, False]


def test_a_replica_that_is_lost_before_it_answers_supersedes_nobody():
    async def scenario(known, usable):
        known.update(frozenset("ab"))
        await until(usable, lambda: usable._versions)
        return usable.superseded, usable.replicas

    assert follow(scenario, {"a": "old"}) == (False, frozenset())


def test_a_replica_that_could_not_be_asked_at_first_is_used_once_it_answers(monkeypatch):
    monkeypatch.setattr("serve.calls.replicas._PAUSES_S", (0.001, 0.002))
    versions = {}

    async def scenario(known, usable):
        known.update(frozenset("a"))
        await asyncio.sleep(0.01)
        versions["a"] = "new"
        await until(usable, lambda: usable.replicas)
        return usable.replicas

    assert follow(scenario, versions) == {"a"}


def test_a_replica_that_hangs_is_asked_again(monkeypatch):
    monkeypatch.setattr("serve.calls.replicas._ASK_S", 0.01)
    monkeypatch.setattr("serve.calls.replicas._PAUSES_S", (0.001, 0.002))
    asked = []

    async def ask(replica):
        asked.append(replica)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return "new"

    async def run():
        known = KnownReplicas()
        usable = CompatibleReplicas(known, "new", ask)
        known.update(frozenset("a"))
        following = asyncio.create_task(usable.follow())
        async with asyncio.timeout(10):
            await until(usable, lambda: usable.replicas)
        following.cancel()

    asyncio.run(run())
    assert asked == ["a", "a"]


def test_a_change_between_reading_the_set_and_waiting_is_not_missed():
    """The one who waits begins to only when the event loop comes to it; others may change the set before."""

    async def run():
        known = KnownReplicas()
        change = known.change()
        known.update(frozenset("a"))
        async with asyncio.timeout(1):
            await change

    asyncio.run(run())


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.frozensets(st.sampled_from("abcd")), st.integers(0, 4)), max_size=12))
def test_it_ends_with_the_last_set_however_changes_fall(changes):
    async def scenario(known, usable):
        for replicas, pauses in changes:
            asyncio.get_running_loop().call_soon(known.update, replicas)
            for _ in range(pauses):
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await until(usable, lambda: usable.replicas == known.replicas)
        return True

    assert follow(scenario, dict.fromkeys("abcd", "new"))
