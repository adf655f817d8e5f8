"""The replicas of a deployment as this process knows them, and how to call one of them.

Apart from the router that fills them in: Ray pickles a router's whole module by value, so that what stood beside it
would be another copy than the one that the rest of the process imports.
"""

import asyncio

from ray.serve.exceptions import RayServeException

PIN = "pin:"


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
    return PIN + replica
