"""The Decoders that an Interpreter may use: those that run its own models.

While a service is updated there are replicas of two versions. An answer keeps to one: chunks of another model would be
another answer, and its token ids another text.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ray.exceptions import RayActorError

from serve.calls.replicas import Members, ReplicaLost


class Superseded(Exception):
    """There are Decoders, but all of another version: an Interpreter of theirs takes new requests."""


class Roster:
    """The replicas of one ``version`` among ``members``; ``ask`` tells a replica's.

    :meth:`follow` keeps it up to date. For one event loop.
    """

    def __init__(self, members: Members, version: str, ask: Callable[[str], Awaitable[str]]) -> None:
        self._members, self._version, self._ask = members, version, ask
        self._versions: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def replicas(self) -> frozenset[str]:
        """Those that may be used now."""
        return frozenset(r for r in self._members.replicas if self._versions.get(r) == self._version)

    @property
    def superseded(self) -> bool:
        """Whether there are replicas, and every one is of another version."""
        versions = [self._versions.get(replica) for replica in self._members.replicas]
        return bool(versions) and None not in versions and self._version not in versions

    async def change(self) -> None:
        """Wait until there may be others than now."""
        await self._changed.wait()

    async def follow(self) -> None:
        """Ask every replica that comes for its version, for ever."""
        asking: dict[str, asyncio.Task[None]] = {}
        while True:
            present = self._members.replicas
            for replica in asking.keys() - present:
                asking.pop(replica).cancel()
                self._versions.pop(replica, None)
            for replica in present - asking.keys():
                asking[replica] = asyncio.create_task(self._learn(replica))
            changed = asyncio.create_task(self._members.change())
            self._tell()
            if self._members.replicas == present:
                await changed
            changed.cancel()

    async def _learn(self, replica: str) -> None:
        # A replica that is lost meanwhile leaves the members too.
        with suppress(RayActorError, ReplicaLost):
            self._versions[replica] = await self._ask(replica)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
