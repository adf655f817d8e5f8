"""A service that is to stop finishes what it has begun and sends away what is new."""

import asyncio
import json
import signal
import threading
import time

import httpx
import pytest

from serve.errors import ApiError
from serve.gateway.guard import Drain
from tests.support.service import command, save_tiny_model, service_config

# -- one Gateway's requests --------------------------------------------------------------------------------


def test_draining_waits_for_the_open_requests_and_takes_no_new_ones():
    async def scenario():
        drain = Drain()
        with drain.request():
            draining = asyncio.create_task(drain.drain())
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


def test_a_request_that_fails_is_over_too():
    async def scenario():
        drain = Drain()
        with pytest.raises(ZeroDivisionError), drain.request():
            _ = 1 / 0
        await asyncio.wait_for(drain.drain(), 10)

    asyncio.run(scenario())


def test_with_nothing_open_draining_is_done_at_once():
    asyncio.run(asyncio.wait_for(Drain().drain(), 10))


# -- the service, ended by a signal ------------------------------------------------------------------------

HELLO = {"model": "pasta-atlas", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def service(tmp_path):
    # One answer after another in each decoder, so that some are still open when all is said and done below.
    slow = {"engine": {"num_slots": 1, "slot_tokens": 4096}, "admission": {"budget_tokens": 60000}}
    file = service_config(tmp_path, save_tiny_model(tmp_path / "model"), **slow)
    with command("-m", "serve.run", file, "--port", 0, log=tmp_path / "log") as service:
        service.url = service.wait_for(r"^serving .* at (http://127\.0\.0\.1:\d+)/v1")[1]
        yield service


@pytest.mark.e2e
@pytest.mark.slow
def test_sigterm_finishes_the_open_answers_and_refuses_new_ones(service):
    # With random weights an answer may end soon, but not all of so many.
    many = {"model": "pasta-atlas", "prompt": ["a", "b", "c"], "n": 8, "max_tokens": 1000, "temperature": 1.0}
    codes = []
    with (
        httpx.Client(base_url=service.url, timeout=120) as http,
        http.stream("POST", "/v1/completions", json={**many, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        ending = threading.Thread(target=lambda: codes.append(service.end(signal.SIGTERM, timeout_s=120)))
        ending.start()
        service.wait_for("finishing open requests")
        while httpx.get(f"{service.url}/ready", timeout=60).status_code != 503:
            time.sleep(0.01)
        refused = httpx.post(f"{service.url}/v1/chat/completions", json=HELLO, timeout=60)
        events = [line.removeprefix("data: ") for line in lines if line]
    ending.join()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert refused.headers["retry-after"] == "1"
    assert events.pop() == "[DONE]"
    ends = [choice["finish_reason"] for event in events for choice in json.loads(event)["choices"]]
    assert sum(reason is not None for reason in ends) == 24
    assert codes == [128 + signal.SIGTERM]
    assert service.leaves_nothing()
