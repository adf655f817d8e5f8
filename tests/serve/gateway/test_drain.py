"""A Gateway that is to stop finishes what it has begun and sends away what is new (the whole service:
tests/e2e/api/test_shutdown.py)."""

import asyncio

import pytest

from serve.errors import ApiError
from serve.gateway import answers
from serve.gateway.guard import OpenRequests
from serve.wire import Delta


def test_draining_waits_for_the_open_requests_and_takes_no_new_ones():
    async def scenario():
        drain = OpenRequests(8)
        with drain.request():
            draining = asyncio.create_task(drain.drain(60))
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as refused, drain.request():
                pass
            with pytest.raises(ApiError):
                drain.check()
            assert not draining.done()
        await draining
        return refused.value

    error = asyncio.run(scenario())
    assert (error.status, error.code, error.headers) == (503, "service_unavailable", {"Retry-After": "1"})


def test_beyond_its_places_requests_are_refused_until_one_is_free():
    requests = OpenRequests(2)
    with requests.request():
        with requests.request(), pytest.raises(ApiError) as refused, requests.request():
            pass
        with requests.request():
            pass
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})


def test_a_request_that_fails_is_over_too():
    async def scenario():
        drain = OpenRequests(8)
        with pytest.raises(ZeroDivisionError), drain.request():
            _ = 1 / 0
        await asyncio.wait_for(drain.drain(60), 10)

    asyncio.run(scenario())


def test_with_nothing_open_draining_is_done_at_once():
    asyncio.run(asyncio.wait_for(OpenRequests(8).drain(60), 10))


def test_an_answer_that_is_not_whole_when_draining_is_over_ends_with_an_error():
    async def endless():
        while True:
            yield [Delta("a")]
            await asyncio.sleep(0.01)

    async def scenario():
        requests = OpenRequests(8)
        with requests.request():
            draining = asyncio.create_task(requests.drain(0.05))
            with pytest.raises(ApiError) as error:
                async for _ in answers.checked(endless(), 60, requests):
                    pass
        await draining
        return error.value

    error = asyncio.run(scenario())
    assert (error.status, error.code, error.headers) == (503, "service_unavailable", {"Retry-After": "1"})
    assert "stopped before the answer was whole" in str(error)
