"""Several streams as one: all of each, in its own order; one failure ends all; leaving early closes all."""

import asyncio
from contextlib import aclosing

import pytest

from serve.interpreter.deployment import CachedTokens, merge_streams
from serve.wire import Delta, Finished

CLOSED: list[str] = []


async def count(name, most, *, fails=False):
    try:
        for number in range(most):
            await asyncio.sleep(0)
            yield f"{name}{number}"
        if fails:
            raise ValueError(name)
    finally:
        CLOSED.append(name)


@pytest.fixture(autouse=True)
def _none_closed():
    CLOSED.clear()


@pytest.mark.parametrize("sizes", [[3], [2, 50, 0]])
def test_everything_comes_with_the_number_of_its_stream(sizes):
    async def run():
        return [item async for item in merge_streams([count("abc"[n], size) for n, size in enumerate(sizes)])]

    items = asyncio.run(run())
    for number, size in enumerate(sizes):
        assert [item for n, item in items if n == number] == [f"{'abc'[number]}{i}" for i in range(size)]


def test_a_failure_ends_all():
    async def run():
        return [item async for item in merge_streams([count("a", 10**9), count("b", 3, fails=True)])]

    with pytest.raises(ValueError, match="b"):
        asyncio.run(run())
    assert sorted(CLOSED) == ["a", "b"]


@pytest.mark.parametrize("number", [1, 3])
def test_leaving_early_closes_all(number):
    async def run():
        async with aclosing(merge_streams([count("abc"[n], 10**9) for n in range(number)])) as items:
            async for _ in items:
                if len({*"abc"[:number]}) == number:
                    await asyncio.sleep(0.01)
                    return

    asyncio.run(run())
    assert sorted(CLOSED) == [*"abc"[:number]]


def test_cached_tokens_are_counted_once_a_prompt():
    """Two prompts of three choices: of the first prompt every choice found 7 tokens, of the second one found none."""
    cached = CachedTokens(3)
    found = {0: 7, 3: 5, 1: 7, 5: 5, 2: 7, 4: 0}
    ends = [Finished("stop", 9, 1, {}, index, tokens) for index, tokens in found.items()]
    assert [cached.counted(end).cached_tokens for end in ends] == [0, 0, 0, 0, 7, 0]
    assert cached.counted(Delta("a")) == Delta("a")
