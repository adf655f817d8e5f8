"""The only module that uses private APIs of Ray Serve, written against ray 2.60.0.

tests/serve/calls/test_ray_serve.py fails, and names that version, when one of them is gone:

- ``handle._init(_run_router_in_separate_loop=…)`` and ``handle.is_initialized``: run the router on the caller's loop.
- ``handle.options(_by_reference=False)``: send calls over gRPC.
- ``RequestRouter._choose_replica_for_request`` and ``_deployment_id``, with ``session_id`` as the pin: call one
  particular replica.
- The environment variables in ``PROXY_ENV`` and ``REPLICA_ENV`` (``grpc_proxy`` is gRPC's), and those of
  serve/ingress.py, which Ray Serve reads when a process starts; the constants that it makes of two of them
  (``started_proxy``).
- ``SERVE_CONTROLLER_NAME`` and ``SERVE_NAMESPACE``: find the controller before it answers.
- The closure of the ``send`` that a replica gives to an ASGI application, with its ``MessageQueue``: see how many
  messages wait for the proxy.
- ``Counter._record``: export a counter as 0 before it counts.
- ``http_util.socket``, the module by which a replica that listens itself makes its socket: let it take a port at once.

Ray pickles the module of a router by value: its process gets a second copy of this module. So nothing here may be
shared state; ``known_replicas`` lives in serve/calls/replicas.py, which Ray imports by name.
"""

import socket
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import ray
from ray import serve
from ray.serve._private import constants, http_util
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.http_util import MessageQueue
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve.calls.replicas import ReplicaLost, known_replicas
from serve.config import Proxy

#: The longest message between processes, in bytes: gRPC's own bound, not its 4 MiB default. A whole answer is one
#: message; admission bounds it.
_MESSAGES = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}
#: gRPC would send calls within the service to the HTTP proxy that http_proxy names.
_DIRECT = {"grpc_proxy": ""}
#: Middleware for whoever listens to clients: Ray Serve's proxy, or a Gateway's replica where that proxy does not.
_MIDDLEWARE = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.gateway.proxy.middlewares"}
#: For Ray Serve's proxy: forward events over gRPC in one event loop, which costs the proxy half as much an event, and
#: send a request's body along with its head. On a busy machine a proxy takes longer to start than the 5 s after which
#: Serve kills it, and with it the start of the service. The image sets the same (docker/Dockerfile).
PROXY_ENV = {
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    **_MIDDLEWARE,
    **_MESSAGES,
    **_DIRECT,
}
#: For every replica: run our code on the replica's own event loop. Handing items to another thread doubles their cost.
REPLICA_ENV = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0", **_MIDDLEWARE, **_MESSAGES, **_DIRECT}

_PIN = "pin:"
#: A router remembers at most so many replicas that Serve has removed from its routing.
_MAX_LEAVING = 64


def started_proxy() -> Proxy:
    """The ``front.proxy`` that this process' Ray was started for."""
    if constants.RAY_SERVE_ENABLE_HA_PROXY:
        return "haproxy"
    return "none" if constants.RAY_SERVE_ENABLE_DIRECT_INGRESS else "ray"


def controller() -> Any:
    """Ray Serve's controller, which may be starting still. Raises ``ValueError`` if there is none."""
    return ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)


class DeploymentClient:
    """Calls another deployment through its handle.

    Items of a stream go over gRPC, and the router runs on the caller's own event loop: an item then costs about a
    tenth of what it costs over Ray's object transport. Ray takes both settings only before the handle's first use, on
    the loop that uses it: so the handle is initialised at the first call.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._initialised = False

    def open(self) -> None:
        """Initialise the handle before its first call, so that its router learns the replicas."""
        if not self._initialised:
            self._initialised = True
            if not self._handle.is_initialized:
                self._handle._init(_run_router_in_separate_loop=False)

    async def stream(self, method: str, *args: Any, replica: str | None = None) -> AsyncGenerator[Any, None]:
        """Call a generator method and yield its items; leaving the iteration early cancels the call.

        With ``replica`` the call is pinned to it, and raises ``ReplicaLost`` if that replica is gone.
        """
        self.open()
        handle = self._handle.options(
            method_name=method,
            stream=True,
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
            session_id=pin(replica),
        )
        items = handle.remote(*args)
        try:
            async for item in items:
                yield item
        finally:
            # gRPC does not propagate a cancellation by itself. After the stream's end this does nothing.
            items.cancel()

    async def call(self, method: str, *args: Any, replica: str | None = None) -> Any:
        """Call a method on one replica: on ``replica``, or on any if it is ``None``."""
        self.open()
        handle = self._handle.options(method_name=method, _by_reference=False, session_id=pin(replica))
        return await handle.remote(*args)


def pin(replica: str | None) -> str:
    """The ``session_id`` that makes :class:`PinnedRouter` send a call to ``replica``; ``None`` pins it to none."""
    return "" if replica is None else _PIN + replica


class PinnedRouter(FIFOMixin, RequestRouter):
    """Routes a pinned call to its replica, and any other call to a replica with room.

    Ray Serve's own routers look pending calls up by the id of the HTTP request. Calls made while handling one request
    share that id: made at the same time they get each other's replicas, or none. A pinned call skips that queue.

    A replica that Serve takes out of the routing, in a rolling update or when scaling down, still finishes what it
    has begun: calls pinned to it reach it until it ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaving: OrderedDict[str, RunningReplica] = OrderedDict()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve whenever the set of running replicas changes."""
        before = dict(self.curr_replicas)
        super().update_replicas(replicas)
        for replica_id, replica in before.items():
            if replica_id not in self.curr_replicas:
                self._leaving[replica_id.unique_id] = replica
        while len(self._leaving) > _MAX_LEAVING:
            self._leaving.popitem(last=False)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Serve when a call finds the replica dead."""
        super().on_replica_actor_died(replica_id)
        self._leaving.pop(replica_id.unique_id, None)
        self._publish()

    def _publish(self) -> None:
        known = known_replicas(self._deployment_id.name)
        known.update(frozenset(replica.unique_id for replica in self.curr_replicas))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas for a call without a pin: all of them; Serve takes the one with the shortest queue."""
        return [candidate_replicas]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> Any:
        # The step before the queues (Ray's own capacity_queue_router overrides it too).
        wanted = pending_request.metadata.session_id
        if not wanted.startswith(_PIN):
            if len(self.curr_replicas) == 1 and not is_retry:
                return next(iter(self.curr_replicas.values()))  # no choice, no queue
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        replica = wanted.removeprefix(_PIN)
        if not is_retry:
            for replica_id, running in self.curr_replicas.items():
                if replica_id.unique_id == replica:
                    return running
            if (leaving := self._leaving.get(replica)) is not None:
                return leaving
        raise ReplicaLost(f"replica {replica} is gone")


def this_replica() -> str:
    """The name by which calls are pinned to this replica; outside of Ray Serve one that no other process has."""
    try:
        return str(serve.get_replica_context().replica_id.unique_id)
    except RayServeException:
        return uuid.uuid4().hex


def unsent(send: Any) -> Callable[[], int]:
    """A function that tells how many ASGI messages of this ``send`` wait to be sent to the proxy.

    Ray Serve's queue has no bound, and tells nobody its length.
    """
    for cell in send.__closure__ or ():
        if isinstance(cell.cell_contents, MessageQueue):
            waiting = cell.cell_contents._message_queue
            return lambda: len(waiting)
    raise TypeError("Ray Serve's send holds no MessageQueue")


def export_zero(counter: Any) -> None:
    """Export a counter without labels from the start: Prometheus knows no rate of one that first appears as 1.

    ``inc`` refuses 0.
    """
    counter._record(0.0)


class _Reusing(socket.socket):
    def bind(self, address: Any) -> None:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().bind(address)


def reuse_addresses() -> None:
    """Have this replica, where it listens itself, take its port although connections of one before it still end there.

    Ray Serve binds without SO_REUSEADDR: for a minute after a service has stopped, or a Gateway has died, the port
    would be in use for the next one.
    """
    http_util.socket = SimpleNamespace(**{**vars(socket), "socket": _Reusing})
