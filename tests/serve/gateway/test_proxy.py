"""What stands between Ray Serve's proxy and the Gateway: a request's body goes with its head, a response that nobody
reads ends, and a request whose Gateway is lost is answered."""

import asyncio

import httpx
import pytest
from starlette.datastructures import MutableHeaders

from serve.gateway import proxy
from serve.gateway.proxy import (
    BODY,
    WRITE_TIMEOUT,
    AnswerLost,
    EndUnread,
    OwnHeaders,
    SendBody,
    TakeBody,
    middlewares,
)
from tests.serve.gateway.conftest import listening

GONE = {"type": "http.disconnect"}


def piece(body, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


def scope(length=None, kind="http"):
    headers = [(b"host", b"here")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": kind, "headers": headers}


def through(middleware, given, *messages):
    """What the application behind it sees: the scope, and what it receives; ``None`` if it is not called."""
    seen = []

    async def app(scope, receive, _):
        seen.append((dict(scope), [await receive() for _ in range(2)]))

    waiting = iter([*messages, GONE, GONE])

    async def receive():
        return next(waiting)

    asyncio.run(middleware(app)(given, receive, None))
    return seen[0] if seen else None


def test_a_body_is_sent_in_the_scope():
    seen, received = through(SendBody, scope(5), piece(b"he", more=True), piece(b"llo"))
    assert seen[BODY] == b"hello"
    assert received == [GONE, GONE], "what is left to say is that the client has gone"


@pytest.mark.parametrize(
    "given",
    [scope(), scope("x"), scope(0), scope(1 << 20), scope(5, "websocket")],
    ids=["no length", "no number", "empty", "long", "no request"],
)
def test_any_other_body_is_asked_for_as_always(given):
    seen, received = through(SendBody, given, piece(b"hello"))
    assert BODY not in seen
    assert received == [piece(b"hello"), GONE]


def slowly(*messages):
    """What an application receives of a body that has not arrived whole soon: no sooner than it asks."""
    seen = []

    async def app(scope, receive, _):
        assert BODY not in scope
        late.set()
        seen.extend([await receive() for _ in messages])

    waiting, late = [*messages], asyncio.Event()

    async def receive():
        if len(waiting) == 1:
            await late.wait()
        return waiting.pop(0)

    async def run():
        await asyncio.wait_for(SendBody(app)(scope(5), receive, None), 30)

    asyncio.run(run())
    return seen


def test_nobody_waits_in_the_proxy_for_a_body_that_comes_slowly():
    assert slowly(piece(b"llo")) == [piece(b"llo")]


def test_what_had_come_of_a_slow_body_is_received_first():
    pieces = piece(b"h", more=True), piece(b"e", more=True), piece(b"llo")
    assert slowly(*pieces) == [*pieces]


def test_a_client_that_goes_before_its_body_is_whole_asks_for_nothing():
    assert through(SendBody, scope(5), piece(b"he", more=True), GONE) is None


def test_a_body_that_came_along_is_received_like_any_other():
    seen, received = through(TakeBody, {**scope(5), BODY: b"hello"})
    assert BODY not in seen
    assert received == [piece(b"hello"), GONE]


def test_without_the_proxy_s_part_the_body_is_received():
    _, received = through(TakeBody, scope(5), piece(b"hello"))
    assert received == [piece(b"hello"), GONE]


def test_ray_serve_s_proxy_takes_what_is_named_to_it(monkeypatch):
    from ray.serve._private import http_util
    from ray.serve.config import HTTPOptions

    from serve.calls.ray_serve import PROXY_ENV

    name = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
    monkeypatch.setattr(http_util, name, PROXY_ENV[name])
    taken = http_util.configure_http_middlewares(HTTPOptions()).middlewares
    assert (
        [each.cls for each in taken]
        == [each.cls for each in middlewares()]
        == [AnswerLost, SendBody, EndUnread, OwnHeaders]
    )


# -- headers -----------------------------------------------------------------------------------------------


def test_no_header_by_which_ray_serve_takes_orders_reaches_it():
    from ray.serve._private import constants

    of_ray = {
        constants.SERVE_MULTIPLEXED_MODEL_ID,
        constants.SERVE_SESSION_ID,
        constants.SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
        constants.SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
    }
    sent = [(name.encode(), b"\xff") for name in of_ray] + [
        (b"x_session-id", b"a"),
        (b"traceparent", b"\xff"),
    ]
    kept = [(b"host", b"here"), (b"authorization", b"Bearer k\xe9y"), (b"x-request-timeout", b"5")]
    seen, _ = through(OwnHeaders, {"type": "http", "headers": [*sent, *kept]})
    assert seen["headers"] == kept


@pytest.mark.parametrize(("given", "read"), [(b"\xff", "ÿ"), ("é".encode(), "é"), (b"a-1", "a-1")])
def test_a_request_s_id_is_text_whatever_was_sent(given, read):
    seen, _ = through(OwnHeaders, {"type": "http", "headers": [(b"x-request-id", given)]})
    assert seen["headers"][0][1].decode() == read


# -- a response that is not read ---------------------------------------------------------------------------


def endless(ended, **head):
    """An application whose response ends when its client has gone, as Ray Serve's proxy does."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [], **head})

        async def write():
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        ended.set()

    return app


def left(reads, for_s, **head):
    """Whether the connection of an endless response has been ended after a while; ``reads`` if its client reads on."""

    async def scenario():
        ended = asyncio.Event()
        async with listening(endless(ended, **head)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            until = asyncio.get_running_loop().time() + for_s
            while not ended.is_set() and asyncio.get_running_loop().time() < until:
                if reads:
                    await reader.read(2**20)
                await asyncio.sleep(0.01)
            found = ended.is_set()
            writer.transport.abort()
            await ended.wait()
            return found

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_connection_of_a_client_that_reads_nothing_ends(monkeypatch):
    monkeypatch.setattr(proxy, "LATER_S", 0.0)
    assert left(False, 30.0, **{WRITE_TIMEOUT: 0.1})


@pytest.mark.slow
def test_the_connection_of_a_client_that_reads_stays(monkeypatch):
    monkeypatch.setattr(proxy, "LATER_S", 0.0)
    assert not left(True, 0.6, **{WRITE_TIMEOUT: 0.2})


@pytest.mark.slow
def test_other_responses_have_no_deadline():
    assert not left(False, 0.3)


# -- a Gateway that is lost --------------------------------------------------------------------------------


def fetched(app):
    """The response of an application behind the middleware, to a request without an id of its own."""

    async def scenario():
        async with listening(app) as port, httpx.AsyncClient() as client:
            return await client.post(f"http://127.0.0.1:{port}/v1/completions", content=b"{}")

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_request_whose_gateway_is_lost_may_be_sent_again():
    async def lost(scope, receive, send):
        """Return without a response, as Ray Serve's proxy does, which gives each request an id."""
        MutableHeaders(scope=scope).append("x-request-id", "its-own")

    response = fetched(lost)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.headers["X-Request-Id"] == "its-own"
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "service_unavailable", None)
    assert error["message"].endswith("; send the request again.")


def test_a_response_that_has_begun_ends_as_it_is():
    async def cut(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1", "more_body": True})

    with pytest.raises(httpx.RemoteProtocolError):
        fetched(cut)


def test_an_answer_of_the_gateway_stays():
    async def answered(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"its own"})

    response = fetched(answered)
    assert (response.status_code, response.content) == (500, b"its own")
