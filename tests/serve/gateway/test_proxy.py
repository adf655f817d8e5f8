"""A request's body goes to the Gateway with its head."""

import asyncio

import pytest

from serve.gateway.proxy import BODY, SendBody, TakeBody, middlewares

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
    assert [each.cls for each in taken] == [each.cls for each in middlewares()] == [SendBody]
