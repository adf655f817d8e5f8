"""The Gateway's own routes and middleware, over HTTP, in this process: no Ray, and an Interpreter that says little."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from ray import serve

from serve.config import ServeConfig
from serve.gateway import pace
from serve.gateway.deployment import Gateway, app
from serve.gateway.proxy import middlewares


class Interpreter:
    """A handle that answers calls from a table; a list is the items of a stream, or a function makes it of the call."""

    is_initialized = True

    def __init__(self, **says: Any) -> None:
        self._says = says

    def options(self, *, method_name: str, stream: bool = False, **_: Any) -> SimpleNamespace:
        async def remote(*_: Any) -> Any:
            return self._says[method_name]

        def items(*arguments: Any) -> Items:
            says = self._says[method_name]
            return Items(says(*arguments) if callable(says) else says)

        return SimpleNamespace(remote=items if stream else remote)


class Items:
    """The items of a stream."""

    def __init__(self, items: list[Any]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> "Items":
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        self._items = iter(())


async def _make(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **says: Any) -> Any:
    """A Gateway of this configuration behind the application."""
    # Of Ray Serve's queue between replica and proxy; there is none here.
    monkeypatch.setattr(pace, "unsent", lambda send: lambda: 0)
    monkeypatch.setattr("serve.priority.set_batch", lambda: None)
    monkeypatch.setattr("serve.observe.watch.record", lambda observations: None)
    monkeypatch.setattr(app, "middleware_stack", None)  # made anew for this configuration
    settings = ServeConfig.model_validate({"models": {"m": {"path": "x", "dtype": "float32"}}, **config})
    interpreter = Interpreter(contexts={"m": 8}, **says)
    ours = Gateway.__mro__[1]  # what Ray has wrapped
    gateway = ours.__new__(ours)
    await gateway.__init__(settings, interpreter)
    context = SimpleNamespace(servable_object=gateway)
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    return gateway


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., httpx.Response]:
    """A function that sends a request to a Gateway of this configuration, from ``peer``; returns the response."""

    def send(
        config: dict[str, Any], method: str, path: str, peer: str = "127.0.0.1", **options: Any
    ) -> httpx.Response:
        async def run() -> httpx.Response:
            await _make(monkeypatch, config)
            transport = httpx.ASGITransport(app, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
                return await http.request(method, path, **options)

        return asyncio.run(run())

    return send


@contextlib.asynccontextmanager
async def listening(application: Any) -> AsyncIterator[int]:
    """The application behind the HTTP server and the middleware of Ray Serve's proxy, on this loop; yields the port."""
    for each in middlewares():
        application = each.cls(application, *each.args, **each.kwargs)
    config = uvicorn.Config(application, port=0, lifespan="off", log_config=None, loop="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.get_running_loop().create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.force_exit = server.should_exit = True
        await task


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A context manager: a Gateway of this configuration behind a real HTTP server; yields its port."""

    @contextlib.asynccontextmanager
    async def serving(config: dict[str, Any], **says: Any) -> AsyncIterator[int]:
        await _make(monkeypatch, config, **says)
        async with listening(app) as port:
            yield port

    return serving
