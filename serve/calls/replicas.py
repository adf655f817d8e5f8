"""Which replicas of a deployment exist, and which of them an Interpreter may use.

Ray's router (serve/calls/ray_serve.py) reports the replicas; this module needs none of Ray's API but its exceptions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

logger = logging.getLogger("ray.serve")
#: How long a replica may take to say its version, and the pauses before it is asked again: the first and the longest.
_ASK_S = 10.0
_PAUSES_S = 0.1, 5.0


class ReplicaLost(RayServeException):
    """The replica that a call is pinned to is gone, or rejected the call."""


class Superseded(Exception):
    """All Decoders run another version: an Interpreter of that version takes new requests."""


class KnownReplicas:
    """The replicas of one deployment, as the router of its handle reports them to this process."""

    def __init__(self) -> None:
        self.replicas: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def update(self, replicas: frozenset[str]) -> None:
        """Replace the set of replicas, and wake those who wait for a change."""
        if replicas != self.replicas:
            self.replicas = replicas
            self._changed.set()
            self._changed = asyncio.Event()

    def change(self) -> Awaitable[object]:
        """Return an awaitable for the next change of the set of replicas: the next after this call, not after the
        await."""
        return self._changed.wait()


_KNOWN: dict[str, KnownReplicas] = {}


def known_replicas(deployment: str) -> KnownReplicas:
    """The replicas of a deployment to which this process holds a handle. One object per process and deployment."""
    return _KNOWN.setdefault(deployment, KnownReplicas())


class CompatibleReplicas:
    """The Decoders that an Interpreter may use: those of its own ``version``.

    During a rolling update replicas of two versions run side by side. A response keeps to one version: another model
    would continue it with other text, and may use other token ids. ``ask`` returns the version of a replica.
    :meth:`follow` keeps the set up to date. For one event loop.
    """

    def __init__(self, known: KnownReplicas, version: str, ask: Callable[[str], Awaitable[str]]) -> None:
        self._known, self._version, self._ask = known, version, ask
        self._versions: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def replicas(self) -> frozenset[str]:
        """The replicas that may be used now."""
        return frozenset(r for r in self._known.replicas if self._versions.get(r) == self._version)

    @property
    def enough(self) -> bool:
        """Whether there are any, and no fewer than of other versions. Until then those have more room for requests."""
        mine = len(self.replicas)
        return 0 < mine >= len(self._known.replicas) - mine

    @property
    def superseded(self) -> bool:
        """Whether there are replicas, and all of them run another version."""
        versions = [self._versions.get(replica) for replica in self._known.replicas]
        return bool(versions) and None not in versions and self._version not in versions

    async def change(self) -> None:
        """Wait until the set may have changed."""
        await self._changed.wait()

    async def follow(self) -> None:
        """Ask every new replica for its version, until cancelled."""
        asking: dict[str, asyncio.Task[None]] = {}
        while True:
            changed = self._known.change()  # asked for before the set is read, so that no change is missed
            present = self._known.replicas
            for replica in asking.keys() - present:
                asking.pop(replica).cancel()
                self._versions.pop(replica, None)
            for replica in present - asking.keys():
                asking[replica] = asyncio.create_task(self._learn(replica))
            self._notify()
            await changed

    async def _learn(self, replica: str) -> None:
        """Ask a replica for its version until it answers. A replica that has died leaves the known replicas; that ends
        the loop."""
        pause, longest = _PAUSES_S
        while replica not in self._versions:
            try:
                async with asyncio.timeout(_ASK_S):
                    self._versions[replica] = await self._ask(replica)
            except (RayError, RayServeException, TimeoutError) as error:
                logger.info("replica %s does not say its version (%s)", replica, type(error).__name__)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
