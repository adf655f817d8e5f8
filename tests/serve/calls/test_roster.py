"""Which Decoders an Interpreter may use while a service is updated."""

import asyncio

from ray.exceptions import RayActorError

from serve.calls.replicas import Members
from serve.calls.roster import Roster


def follow(scenario, versions):
    """Run ``scenario(members, roster)`` beside a roster of version new; a replica without a version is lost."""

    async def ask(replica):
        await asyncio.sleep(0)
        if replica not in versions:
            raise RayActorError
        return versions[replica]

    async def run():
        members = Members()
        roster = Roster(members, "new", ask)
        following = asyncio.create_task(roster.follow())
        async with asyncio.timeout(10):
            result = await scenario(members, roster)
        following.cancel()
        return result

    return asyncio.run(run())


async def until(roster, condition):
    while not condition():
        await roster.change()


def test_only_replicas_of_the_same_version_are_used():
    async def scenario(members, roster):
        members.update(frozenset("abc"))
        await until(roster, lambda: len(roster.replicas) == 2)
        return roster.replicas

    assert follow(scenario, {"a": "old", "b": "new", "c": "new"}) == {"b", "c"}


def test_a_replica_that_has_not_said_its_version_is_not_used():
    async def scenario(members, roster):
        members.update(frozenset("a"))
        return roster.replicas

    assert follow(scenario, {"a": "new"}) == set()


def test_replicas_come_and_go():
    async def scenario(members, roster):
        members.update(frozenset("a"))
        await until(roster, lambda: roster.replicas)
        members.update(frozenset("ab"))
        await until(roster, lambda: len(roster.replicas) == 2)
        members.update(frozenset("b"))
        return roster.replicas

    assert follow(scenario, {"a": "new", "b": "new"}) == {"b"}


def test_it_is_superseded_when_all_replicas_are_of_another_version():
    async def scenario(members, roster):
        seen = [roster.superseded]
        members.update(frozenset("ab"))
        await until(roster, lambda: roster.replicas)
        seen.append(roster.superseded)
        members.update(frozenset("b"))
        await until(roster, lambda: roster.superseded)
        return seen

    assert follow(scenario, {"a": "new", "b": "old"}) == [False, False]


def test_a_replica_that_is_lost_before_it_answers_supersedes_nobody():
    async def scenario(members, roster):
        members.update(frozenset("ab"))
        await until(roster, lambda: roster._versions)
        return roster.superseded, roster.replicas

    assert follow(scenario, {"a": "old"}) == (False, frozenset())
