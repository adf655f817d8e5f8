"""Calls to one particular Decoder: a router for Ray Serve's handles that takes a pin, and knows who is there.

Serve's own routers look pending calls up by a request id that all calls made while handling one request share,
so that several at once get each other's replicas, or none. A pinned call needs no choice: it never queues here.
"""

import asyncio
from typing import Any

from ray.serve.exceptions import RayServeException
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

_PIN = "pin:"


class ReplicaLost(RayServeException):
    """The replica that a call is pinned to is gone, or did not take it."""


class Members:
    """The replicas of a deployment as this process knows them; filled by its handle's router."""

    def __init__(self) -> None:
        self.replicas: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def update(self, replicas: frozenset[str]) -> None:
        """Take note of the replicas that there are now."""
        if replicas != self.replicas:
            self.replicas = replicas
            self._changed.set()
            self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait until there are others than now."""
        await self._changed.wait()


_MEMBERS: dict[str, Members] = {}


def members(deployment: str) -> Members:
    """The replicas of a deployment that this process holds a handle to."""
    return _MEMBERS.setdefault(deployment, Members())


def pin(replica: str) -> str:
    """The ``session_id`` option of a call to one replica."""
    return _PIN + replica


class PinnedRouter(FIFOMixin, RequestRouter):
    """Sends a call to the replica it is pinned to; any other call wherever there is room."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells of every change."""
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call found the replica dead."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        found = members(self._deployment_id.name)
        found.update(frozenset(replica.unique_id for replica in self.curr_replicas))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Of a call without a pin: any replica, the one with the shortest queue first."""
        return [candidate_replicas]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> Any:
        # The step before the queues (Ray's own capacity_queue_router hooks in here too).
        wanted = pending_request.metadata.session_id
        if not wanted.startswith(_PIN):
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if not is_retry:
            for replica_id, replica in self.curr_replicas.items():
                if _PIN + replica_id.unique_id == wanted:
                    return replica
        raise ReplicaLost(f"replica {wanted.removeprefix(_PIN)} is gone")
