"""Which Decoders an Interpreter may use while a service is updated."""

import asyncio

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
