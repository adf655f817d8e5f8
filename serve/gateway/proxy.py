"""Middleware that sends a request's body from Ray Serve's HTTP proxy to the Gateway along with its head.

Without it the proxy sends the head only, and the replica fetches the body with another call, which takes as long as all
the rest of a short request. Ray Serve loads ``middlewares`` into its proxy because
``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` names it (serve/calls/ray_serve.py).
"""

from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request

#: The key of the ASGI scope that holds the body.
BODY = "pasta.body"
#: The Gateway fetches bodies that are longer, or have no Content-Length.
_MOST_BYTES = 256 * 1024


class SendBody:
    """ASGI middleware for the proxy: reads the body and puts it into the scope, which Ray sends to the replica."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and 0 < _length(scope) <= _MOST_BYTES:
            try:
                scope[BODY] = await Request(scope, receive).body()
            except ClientDisconnect:
                return
        await self._app(scope, receive, send)


class TakeBody:
    """ASGI middleware for the Gateway: delivers a body from the scope as if it had been received."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
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
    """The middleware for Ray Serve's proxy, which calls this when it starts."""
    return [Middleware(SendBody)]


def _length(scope: MutableMapping[str, Any]) -> int:
    value = Headers(scope=scope).get("content-length", "")
    return int(value) if value.isdecimal() else 0
