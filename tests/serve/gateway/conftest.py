"""The Gateway's own routes and middleware, over HTTP, in this process: no Ray, and an Interpreter that says little."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import serve

from serve.config import ServeConfig
from serve.gateway import pace
from serve.gateway.deployment import Gateway, app


class Interpreter:
    """A handle that answers calls from a table."""

    is_initialized = True

    def __init__(self, **says: Any) -> None:
        self._says = says

    def options(self, *, method_name: str, **_: Any) -> SimpleNamespace:
        async def remote(*_: Any) -> Any:
            return self._says[method_name]

        return SimpleNamespace(remote=remote)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., httpx.Response]:
    """A function that sends a request to a Gateway of this configuration, from ``peer``; returns the response."""

    def send(
        config: dict[str, Any], method: str, path: str, peer: str = "127.0.0.1", **options: Any
    ) -> httpx.Response:
        settings = ServeConfig.model_validate({"models": {"m": {"path": "x", "dtype": "float32"}}, **config})

        async def run() -> httpx.Response:
            interpreter = Interpreter(version=settings.version, contexts={"m": 8})
            ours = Gateway.__mro__[1]  # what Ray has wrapped
            gateway = ours.__new__(ours)
            await gateway.__init__(settings, interpreter)
            context = SimpleNamespace(servable_object=gateway)
            monkeypatch.setattr(serve, "get_replica_context", lambda: context)
            transport = httpx.ASGITransport(app, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
                return await http.request(method, path, **options)

        # Of Ray Serve's queue between replica and proxy; there is none here.
        monkeypatch.setattr(pace, "unsent", lambda send: lambda: 0)
        monkeypatch.setattr("serve.priority.set_batch", lambda: None)
        monkeypatch.setattr("serve.observe.watch.record", lambda observations: None)
        monkeypatch.setattr(app, "middleware_stack", None)  # made anew for this configuration
        return asyncio.run(run())

    return send
