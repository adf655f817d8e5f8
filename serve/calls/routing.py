"""Calls to one particular Decoder: a router for Ray Serve's handles that takes a pin, and tells who is there.

Serve's own routers look pending calls up by a request id that all calls made while handling one request share,
so that several at once get each other's replicas, or none. A pinned call needs no choice: it never queues here.

Ray pickles this module by value: nothing that others are to share may be defined here (serve/calls/replicas.py holds
it).
"""

from collections import OrderedDict
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from serve.calls.replicas import PIN, ReplicaLost, members

#: How many replicas that were taken out are remembered.
_LEAVING = 64


class PinnedRouter(FIFOMixin, RequestRouter):
    """Sends a call to the replica it is pinned to; any other call wherever there is room.

    A replica that Serve takes out, for an update or because there are too many, still ends what it has begun: calls
    that are pinned to it reach it until it is gone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaving: OrderedDict[str, RunningReplica] = OrderedDict()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells of every change."""
        before = dict(self.curr_replicas)
        super().update_replicas(replicas)
        for replica_id, replica in before.items():
            if replica_id not in self.curr_replicas:
                self._leaving[replica_id.unique_id] = replica
        while len(self._leaving) > _LEAVING:
            self._leaving.popitem(last=False)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call found the replica dead."""
        super().on_replica_actor_died(replica_id)
        self._leaving.pop(replica_id.unique_id, None)
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
        if not wanted.startswith(PIN):
            if len(self.curr_replicas) == 1 and not is_retry:
                return next(iter(self.curr_replicas.values()))  # no choice, no queue
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if not is_retry:
            for replica_id, replica in self.curr_replicas.items():
                if PIN + replica_id.unique_id == wanted:
                    return replica
            if (leaving := self._leaving.get(wanted.removeprefix(PIN))) is not None:
                return leaving
        raise ReplicaLost(f"replica {wanted.removeprefix(PIN)} is gone")
