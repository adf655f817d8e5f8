"""What runs in Ray Serve's HTTP proxy: a request's body goes to the Gateway along with its head.

By itself a replica gets the head only and then asks the proxy for the body with a call of Ray's own, which takes as
long as all the rest of a short request. Named by ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` (serve/launch.py);
without it the Gateway asks.
"""

from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request

#: Where the body is in the request's scope.
BODY = "pasta.body"
#: Bodies that are longer, or of a length that is not said, are asked for.
_MOST_BYTES = 256 * 1024


class SendBody:
    """ASGI middleware of the proxy."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and 0 < _length(scope) <= _MOST_BYTES:
            try:
                scope[BODY] = await Request(scope, receive).body()
            except ClientDisconnect:
                return
        await self._app(scope, receive, send)


class TakeBody:
    """ASGI middleware of the Gateway: a body that came with the head is received like any other."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one connection."""
        body = scope.pop(BODY, None)
        taken = body is None

        async def received() -> Any:
            nonlocal taken
            if taken:
                return await receive()
            taken = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, received, send)


def middlewares() -> list[Middleware]:
    """What Ray Serve's proxy asks for when it starts."""
    return [Middleware(SendBody)]


def _length(scope: MutableMapping[str, Any]) -> int:
    value = Headers(scope=scope).get("content-length", "")
    return int(value) if value.isdecimal() else 0
