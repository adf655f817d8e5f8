"""A stream goes as fast as its client reads; one that nobody reads is given up, and its source closed."""

import asyncio
import contextlib
import json
import socket

import pytest
from ray.serve._private.http_util import MessageQueue

from serve.gateway import pace
from serve.gateway.pace import MOST_UNSENT, PacedApp, PacedStream, unread_event
from tests.serve.gateway.conftest import listening


def queued():
    """A queue and the ``send`` over it, as a replica of Ray Serve gives one to its application."""
    queue = MessageQueue()

    async def send(message):
        queue.put_nowait(message)

    return queue, send


def app_of(state, within_s):
    app = PacedApp()

    async def events():
        try:
            while state["written"] < state["most"]:
                state["written"] += 1
                yield f"data: {state['written']}\n\n"
                await asyncio.sleep(0)
        finally:
            state["closed"] = True

    @app.get("/")
    async def stream():
        return PacedStream(
            events(), within_s, lambda: state.update(gave_up=True), last=unread_event(within_s)
        )

    return app


async def receive():
    await asyncio.Event().wait()


def scope():
    return {
        "type": "http",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }


def bodies(messages):
    return b"".join(m["body"] for m in messages if m["type"] == "http.response.body").decode()


def test_a_client_that_reads_gets_everything():
    async def scenario():
        state, (queue, send) = {"written": 0, "most": 1000}, queued()
        app = app_of(state, 30.0)
        call, found = asyncio.create_task(app(scope(), receive, send)), []
        while not call.done():
            found += queue.get_messages_nowait()
            await asyncio.sleep(0)
        return state, found + queue.get_messages_nowait()

    state, found = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert bodies(found) == "".join(f"data: {n + 1}\n\n" for n in range(1000))
    assert not found[-1]["more_body"]
    assert "gave_up" not in state


def test_an_answer_waits_for_a_slow_client_and_keeps_no_more_than_its_bound():
    async def scenario():
        state, (queue, send) = {"written": 0, "most": 1000}, queued()
        call, found, longest = asyncio.create_task(app_of(state, 30.0)(scope(), receive, send)), [], 0
        while not call.done():
            await asyncio.sleep(0.005)
            longest = max(longest, len(queue._message_queue))
            found += queue.get_messages_nowait()
        return state, found + queue.get_messages_nowait(), longest

    state, found, longest = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert longest <= MOST_UNSENT + 2
    assert bodies(found).endswith("data: 1000\n\n")
    assert "gave_up" not in state


def test_an_answer_that_nobody_reads_is_given_up_and_its_source_closed():
    async def scenario():
        state, (queue, send) = {"written": 0, "most": 10**9}, queued()
        await app_of(state, 0.05)(scope(), receive, send)
        return state, queue.get_messages_nowait()

    state, found = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert state["gave_up"]
    assert state["closed"]
    assert state["written"] <= MOST_UNSENT + 2
    error = json.loads(bodies(found).strip().splitlines()[-1].removeprefix("data: "))
    assert error["error"]["code"] == "timeout"
    assert found[-1]["more_body"], "a response without an end: the server closes its connection"


def test_other_responses_are_what_they_were():
    app = PacedApp()

    @app.get("/")
    async def hello():
        return {"hello": 1}

    async def scenario():
        queue, send = queued()
        await app(scope(), receive, send)
        return queue.get_messages_nowait()

    assert json.loads(bodies(asyncio.run(scenario()))) == {"hello": 1}


def test_the_application_starts_and_stops_as_ray_serve_has_it_do():
    from ray.serve._private.http_util import ASGIAppReplicaWrapper

    async def scenario():
        wrapper = ASGIAppReplicaWrapper(PacedApp())
        await wrapper._run_asgi_lifespan_startup()
        await wrapper.__del__()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def connected(state, within_s, read):
    """Serve an answer without a proxy between; ``read`` gets the client's socket, whose buffers take little."""

    async def scenario():
        app = PacedApp()

        async def pieces():
            try:
                while state["written"] < state["most"]:
                    state["written"] += 1
                    yield "x" * 65536
            finally:
                state["closed"] = True

        @app.get("/")
        async def stream():
            return PacedStream(pieces(), within_s, lambda: state.update(gave_up=True), last="the last")

        async with listening(app) as port:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            with client:
                await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
                return await read(client)

    return asyncio.run(asyncio.wait_for(scenario(), 60))


async def read_all(client, pause_s=0.0):
    found = bytearray()
    while some := await asyncio.get_running_loop().sock_recv(client, 2**20):
        found += some
        await asyncio.sleep(pause_s)
    return bytes(found)


@pytest.mark.slow
def test_without_a_proxy_a_slow_client_gets_everything():
    state = {"written": 0, "most": 200}
    found = connected(state, 5.0, lambda client: read_all(client, 0.001))
    assert found.count(b"x") == 200 * 65536
    assert "gave_up" not in state


@pytest.mark.slow
@pytest.mark.parametrize("later_s", [0.05, 10.0], ids=["reads no more", "reads again"])
def test_without_a_proxy_an_answer_that_nobody_reads_is_given_up(monkeypatch, later_s):
    monkeypatch.setattr(pace, "LATER_S", later_s)
    state = {"written": 0, "most": 10**9}

    async def read(client):
        while "gave_up" not in state:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        with contextlib.suppress(ConnectionResetError):
            return await read_all(client)

    found = connected(state, 0.1, read)
    assert state["closed"]
    assert state["written"] < 1000
    assert (found is not None and b"the last" in found) == (later_s > 1)
