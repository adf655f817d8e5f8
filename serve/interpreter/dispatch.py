"""What all responses of one Interpreter share: which Decoders there are, how busy they are, and who still wants what.

What becomes of one response is serve/interpreter/response.py's.
"""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Coroutine, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError

from pasta.placement import PrefixTable, choose_home
from serve.calls.replicas import ReplicaLost, members
from serve.calls.roster import Roster, Superseded
from serve.calls.transport import Caller
from serve.config import ServeConfig
from serve.observe.metrics import PLACEMENT, Metrics

if TYPE_CHECKING:
    from serve.interpreter.response import Part, Run

#: How long a response waits for a replica when there is none,
NO_REPLICA_S = 30.0
#: and for another than those that it has lost: longer than Serve takes to see that a node has died.
OTHER_REPLICA_S = 3.0
#: A home that knows a prompt's prefix may have this many lanes more than the least loaded replica.
AFFINITY_LANES = 4
#: What placement counts, of a response and of all of them, and what it is called in a trace.
COUNTERS = {"spills": "spill", "returns": "return", "redispatches": "redispatch"}
logger = logging.getLogger("ray.serve")


class Dispatcher:
    """What all responses of one Interpreter share: the replicas, their loads, the leases.

    Leases bind both sides. A Decoder gives up what nobody claims; a Decoder that does not answer a claim for as long is
    taken for lost, since a node that loses power or its network closes no connection.
    """

    def __init__(self, decoders: Caller, config: ServeConfig) -> None:
        self.decoders = decoders
        self.runs: set[Run] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.metrics = Metrics(PLACEMENT)
        self._roster = Roster(members("Decoder"), config.version, self._version)
        self._prefixes = PrefixTable()
        self._lease_s = config.decoder.lease_s
        self._silent: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def count(self, what: str) -> None:
        """One more of ``COUNTERS``."""
        self.counts[what] += 1
        self.metrics.count(f"pasta_{what}")

    def loads(self, without: Set[str] = frozenset()) -> dict[str, int]:
        """Threads that decode on each replica that answers, as far as this Interpreter has put them there."""
        return self._loads(without | self._silent)

    def _loads(self, without: Set[str]) -> dict[str, int]:
        lanes = dict.fromkeys(sorted(self._roster.replicas - without), 0)
        for run in self.runs:
            for replica in run.lanes():
                if replica in lanes:
                    lanes[replica] += 1
        return lanes

    async def home(self, prompt_ids: list[int], without: set[str]) -> str:
        """The replica for a main thread. Raises ``ReplicaLost`` if there is none for long, and ``Superseded``.

        One that the response has lost, or that does not answer, may have been late only: it is better than none.
        """
        try:
            async with asyncio.timeout(NO_REPLICA_S):
                if not (loads := self.loads(without)):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(OTHER_REPLICA_S):
                            while not (loads := self.loads(without)):
                                await self._change()
                while not (loads := loads or self._loads(set())):
                    await self._change()
        except TimeoutError:
            raise ReplicaLost("there is no decoder") from None
        replica = choose_home(loads, self._prefixes.longest(prompt_ids), AFFINITY_LANES)
        self._prefixes.learn(prompt_ids, replica)
        return replica

    async def ready(self) -> None:
        """Begin to follow the replicas; returns when there is one that may be used. Once, before anything else, on the
        event loop that answers."""
        self.decoders.open()
        self.spawn(self._roster.follow())
        self.spawn(self._renew())
        while not self._roster.replicas:
            await self._roster.change()

    async def _change(self) -> None:
        if self._roster.superseded:
            raise Superseded
        await self._roster.change()

    async def _version(self, replica: str) -> str:
        version: str = await self.decoders.call("version", replica=replica)
        return version

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do it whether or not its caller stays: Serve ends calls made in the context of a request that ends."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("what nobody waits for has failed", exc_info=error)

    async def tell(self, replica: str, method: str, *args: Any) -> bool:
        """Call a replica that may be gone: then there is nothing to tell. Whether it was silent for a whole lease."""
        try:
            async with asyncio.timeout(self._lease_s):
                await self.decoders.call(method, *args, replica=replica)
        except TimeoutError:
            return True
        except (RayActorError, ReplicaLost):
            pass
        return False

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            held: dict[str, list[tuple[Run, Part]]] = {replica: [] for replica in self._silent}
            for run in self.runs:
                for part in run.parts.values():
                    held.setdefault(part.replica, []).append((run, part))
            for replica, parts in held.items():
                self.spawn(self._claim(replica, parts))

    async def _claim(self, replica: str, parts: list[tuple["Run", "Part"]]) -> None:
        if await self.tell(replica, "renew", [part.order.request_id for _, part in parts]):
            self._silent.add(replica)
            for run, part in parts:
                run.lose(part, ReplicaLost(f"replica {replica} has been silent for {self._lease_s} s"))
        else:
            self._silent.discard(replica)
