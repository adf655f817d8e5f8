"""What a Gateway refuses without asking its Interpreter."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from serve.calls.replicas import ReplicaLost
from serve.config import KeySettings
from serve.errors import ApiError
from serve.gateway.deployment import Gateway
from serve.gateway.guard import Guard, NoRoomCache, OpenRequests
from serve.keys import new_key
from serve.wire import Accepted, Finished, Refused
from tests.serve.observe.test_watch import order

NO_ROOM = Refused("full", status=429, retry_after_s=1, full=True, no_room=True, by="a")
DONE = [Accepted(3)], [Finished("stop", 3, 5, {})]


class Asked:
    """A Gateway's refusals, an Interpreter that says what it is told to, and how often it was asked."""

    def __init__(self):
        self.now, self.times = 0.0, 0
        self.refusals = NoRoomCache(lambda: frozenset("a"), lambda: self.now)

    async def __call__(self, *says, wanted=None, meanwhile=None):
        async def stream(interpreter):
            self.times += 1
            if meanwhile is not None:
                await meanwhile()
            for batch in says:
                yield [*batch]

        return [batch async for batch in self.refusals.ask(wanted or order(), stream)]


def scenario(test):
    def run():
        asyncio.run(test(Asked()))

    run.__name__ = test.__name__
    return run


@scenario
async def test_the_like_of_a_refused_request_is_refused_unasked(asked):
    assert await asked([NO_ROOM]) == [[NO_ROOM]]
    assert await asked(*DONE) == [[NO_ROOM]]
    assert asked.times == 1


@scenario
async def test_a_request_of_another_shape_is_asked_for(asked):
    await asked([NO_ROOM])
    for wanted in (order(n=2), dataclasses.replace(order(), max_tokens=9)):
        assert await asked([NO_ROOM], wanted=wanted) == [[NO_ROOM]]
    assert asked.times == 3


@scenario
async def test_when_a_request_has_ended_there_may_be_room(asked):
    await asked([NO_ROOM])
    await asked(*DONE, wanted=order(n=2))
    assert await asked(*DONE) == [*map(list, DONE)]


@scenario
async def test_after_a_second_the_interpreter_is_asked_again(asked):
    await asked([NO_ROOM])
    asked.now = 0.9
    assert await asked(*DONE) == [[NO_ROOM]]
    asked.now = 1.0
    assert await asked(*DONE) == [*map(list, DONE)]


@scenario
async def test_a_refusal_from_before_an_end_is_not_remembered(asked):
    async def another_ends():
        await asked(*DONE)

    await asked([NO_ROOM], meanwhile=another_ends)
    assert await asked(*DONE) == [*map(list, DONE)]


@scenario
async def test_a_refusal_that_is_of_this_request_says_nothing_of_the_next(asked):
    await asked([Refused("too long a prompt for what room there is", status=429)])
    assert await asked(*DONE) == [*map(list, DONE)]


@scenario
async def test_a_request_that_is_left_makes_room_too(asked):
    await asked([NO_ROOM])

    async def begun(interpreter):
        yield [Accepted(3)]
        raise AssertionError("nobody waits for more")

    left = asked.refusals.ask(order(n=2), begun)
    await anext(left)
    await left.aclose()
    assert await asked(*DONE) == [*map(list, DONE)]


# -- several Interpreters --------------------------------------------------------------------------------


class Several:
    """A Gateway with Interpreters, some of which are full, and whom it asked."""

    def __init__(self, full, names="abc", lost=""):
        self.full, self.names, self.lost, self.asked = set(full), names, set(lost), []
        self.refusals = NoRoomCache(lambda: frozenset(self.names), lambda: 0.0)

    async def __call__(self):
        async def stream(interpreter):
            name = interpreter or "a"  # whom Serve would choose
            self.asked.append(name)
            if name in self.lost:
                raise ReplicaLost(name)
            if name in self.full:
                yield [dataclasses.replace(NO_ROOM, by=name)]
                return
            for batch in DONE:
                yield [*batch]

        return [batch async for batch in self.refusals.ask(order(), stream)]


@pytest.mark.parametrize("free", ["b", "c"])
def test_one_interpreter_s_no_is_not_another_one_s(free):
    async def test():
        asked = Several({*"abc"} - {free})
        assert await asked() == [*map(list, DONE)]
        assert asked.asked[0] == "a"
        assert asked.asked[-1] == free

    asyncio.run(test())


def test_a_request_too_large_for_one_interpreter_s_room_is_offered_to_the_others():
    """By its prompt, which is known once it is encoded: another request of its shape may be smaller."""

    async def test():
        asked = []

        async def stream(interpreter):
            asked.append(interpreter or "a")
            yield [dataclasses.replace(NO_ROOM, no_room=False, by=asked[-1])]

        refusals = NoRoomCache(lambda: frozenset("abc"), lambda: 0.0)
        for _ in range(2):
            asked.clear()
            assert [batch[0].status async for batch in refusals.ask(order(), stream)] == [429]
            assert sorted(asked) == ["a", "b", "c"]

    asyncio.run(test())


def test_when_all_interpreters_have_refused_the_next_request_is_refused_unasked():
    async def test():
        asked = Several("abc")
        (refused,) = await asked()
        assert refused[0].status == 429
        assert sorted(asked.asked) == ["a", "b", "c"]
        assert (await asked())[0][0].status == 429
        assert len(asked.asked) == 3

    asyncio.run(test())


def test_an_interpreter_that_has_died_is_passed_over():
    async def test():
        asked = Several("a", lost="b")
        assert await asked() == [*map(list, DONE)]
        assert asked.asked[-1] == "c"

    for _ in range(10):  # whoever is asked first
        asyncio.run(test())


def test_an_answer_that_breaks_off_does_not_begin_anew_elsewhere():
    async def test():
        async def stream(interpreter):
            if interpreter is None:
                yield [dataclasses.replace(NO_ROOM, by="a")]
                return
            yield [Accepted(3)]
            raise ReplicaLost(interpreter)

        got = NoRoomCache(lambda: frozenset("abc"), lambda: 0.0).ask(order(), stream)
        assert await anext(got) == [Accepted(3)]
        with pytest.raises(ReplicaLost):
            await anext(got)

    asyncio.run(test())


def test_a_refusal_is_forgotten_with_its_interpreter():
    async def test():
        asked = Several("ab", names="ab")
        await asked()
        asked.names, asked.full = "ac", {"a"}
        assert await asked() == [*map(list, DONE)]

    asyncio.run(test())


def test_a_request_beyond_a_key_s_concurrency_costs_none_of_its_rate(tmp_path):
    """Clients send such a request again, more than once."""
    key = new_key(tmp_path / "keys.yaml", "ann", requests_per_minute=2, max_concurrent=1)
    ours = Gateway.__mro__[1]  # what Ray has wrapped
    gateway = ours.__new__(ours)
    gateway._requests = OpenRequests(8)
    gateway._guard = Guard(KeySettings(file=str(tmp_path / "keys.yaml")), clock=lambda: 0.0)
    request = SimpleNamespace(headers={"authorization": f"Bearer {key}"}, client=None)
    with gateway._open(request):
        for _ in range(3):
            with pytest.raises(ApiError, match="running"), gateway._open(request):
                pass
    with gateway._open(request):
        pass
    with pytest.raises(ApiError, match="Rate limit"), gateway._open(request):
        pass
