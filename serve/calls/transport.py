"""How deployments call each other."""

from collections.abc import AsyncGenerator
from typing import Any

from ray.serve.handle import DeploymentHandle

from serve.calls.replicas import pin


class Caller:
    """A handle to another deployment, for streams.

    Items go over gRPC, and the router runs on the caller's own event loop: an item then costs about a tenth
    of what it costs over Ray's object transport. Both are set before the handle's first use, on the loop that
    uses it, which is why the handle is opened late.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._open = False

    def _ready(self) -> DeploymentHandle:
        if not self._open:
            self._open = True
            if not self._handle.is_initialized:
                self._handle._init(_run_router_in_separate_loop=False)
        return self._handle

    async def stream(self, method: str, *args: Any, replica: str | None = None) -> AsyncGenerator[Any, None]:
        """Call a generator method; leaving the iteration early cancels the call.

        ``replica`` pins it; it then raises ``ReplicaLost`` if that replica is gone (serve/calls/routing.py).
        """
        handle = self._ready().options(
            method_name=method,
            stream=True,
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
            session_id="" if replica is None else pin(replica),
        )
        items = handle.remote(*args)
        try:
            async for item in items:
                yield item
        finally:
            # gRPC does not carry a cancellation onwards by itself; after the end this does nothing.
            items.cancel()

    async def broadcast(self, method: str, timeout_s: float) -> list[Any]:
        """Call a method on every replica. Raises ``TimeoutError`` if one does not answer in time."""
        answers = self._ready().broadcast(method).results_async(timeout_s=timeout_s)
        results: list[Any] = await answers
        return results

    async def call(self, method: str, *args: Any, replica: str | None = None) -> Any:
        """Call a method on one replica, on ``replica`` if it is given."""
        handle = self._ready().options(
            method_name=method, _by_reference=False, session_id="" if replica is None else pin(replica)
        )
        return await handle.remote(*args)

    def open(self) -> None:
        """Let the handle learn what replicas there are, before its first call."""
        self._ready()
