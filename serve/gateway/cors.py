"""Lets web pages of the configured origins use the API from a browser (``cors.allow_origins``); off by default."""

from collections.abc import Collection, MutableMapping
from typing import Any

from ray import serve
from starlette.middleware.cors import CORSMiddleware


class Cors:
    """ASGI middleware: answers preflights, which carry no key, and marks responses as readable to those origins.

    Starlette's middleware does both; its origins must be known when the application is made, and ours are not.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._inner: Any = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._inner is None:
            # The application and its middleware are the module's; the configuration belongs to this replica's Gateway.
            self._inner = self._made(serve.get_replica_context().servable_object.allowed_origins)
        await self._inner(scope, receive, send)

    def _made(self, origins: Collection[str]) -> Any:
        if not origins:
            return self._app
        return CORSMiddleware(
            self._app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # keys travel in Authorization; OpenAI's client adds headers of its own
            expose_headers=("Retry-After", "X-Request-Id", "x-should-retry"),
            allow_private_network=True,  # a page of a named origin may ask a service on its reader's machine
        )
