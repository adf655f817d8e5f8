"""Shared by all responses of one Interpreter: its Decoders, their loads, and the leases of what they decode.

serve/interpreter/response.py handles a single response over its Decoders.
"""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Container, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException

from pasta.placement import choose_home, matched_tokens, prefix_digests
from serve.calls.ray_serve import DeploymentClient
from serve.calls.replicas import CompatibleReplicas, ReplicaLost, Superseded, known_replicas
from serve.config import ServeConfig
from serve.observe.metrics import PLACEMENT, Metrics
from serve.wire import DecodeOrder, Path, Told, Version

#: How long a response waits for a replica when there is none,
NO_REPLICA_S = 30.0
#: and for a replica that it has not lost yet: longer than Serve takes to notice that a node has died.
OTHER_REPLICA_S = 3.0
#: How long a replica may take to tell its statistics.
STATS_S = 5.0
#: Placement's counters, kept for each response and in total, and the name of each in a trace.
COUNTERS = {"spills": "spill", "returns": "return", "redispatches": "redispatch"}
#: An engine: the replica that it is on, and its model.
EngineName = tuple[str, str]
#: The beginnings of a prompt: numbers of tokens in rising order, and their names (``pasta.placement.prefix_digests``).
Prefixes = Sequence[tuple[int, bytes]]
#: Stands for what a replica has not told yet.
_UNTOLD = Told({}, 0, 0)
logger = logging.getLogger("ray.serve")


class Kind(NamedTuple):
    """How a replica computes a model: its number format, and the fingerprint of its weights, empty if it told none. A
    replica of another kind would go on with other text."""

    number_format: str
    weights: str


@dataclass(eq=False)
class Attempt:
    """The part of a response that one replica decodes: the main thread (path ``()``) or a chunk, and all chunks that
    stay with it.

    ``started``: the replica has taken it, or nobody needs it any more. ``ended``: its final message has arrived.
    ``offset``: when it began, in seconds on the response's clock. ``sent``: the calls that gave chunks back to it.
    """

    path: Path
    replica: str
    order: DecodeOrder
    offset: float
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    reader: asyncio.Task[Any] | None = None
    sent: dict[Path, asyncio.Task[Any]] = field(default_factory=dict)


class OpenResponse(Protocol):
    """A response as the dispatcher sees it (serve/interpreter/response.py)."""

    @property
    def attempts(self) -> Mapping[Path, Attempt]:
        """Its attempts that are under way."""

    @property
    def prefixes(self) -> Prefixes:
        """What its prompt begins with."""

    def lanes(self) -> list[str]:
        """The replica of each of its threads that decodes now."""

    def lose(self, attempt: Attempt, error: ReplicaLost) -> None:
        """Go on as if the attempt's stream had ended with ``error``."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What ``Lanes`` has counted of a response: the replica of each thread, the engine of each attempt and of the main
    thread, and the beginnings of its prompt."""

    lanes: Sequence[str] = ()
    slots: Sequence[EngineName] = ()
    home: EngineName | None = None
    prefixes: Prefixes = ()

    @classmethod
    def of(cls, response: OpenResponse) -> "Counted":
        """Count a response as it is now."""
        engines = {path: (each.replica, each.order.model) for path, each in response.attempts.items()}
        return cls(response.lanes(), [*engines.values()], engines.get(()), response.prefixes)


class Lanes:
    """Counts the threads that decode on each replica, and the slots and prompts of each engine.

    Every placement needs the counts, and going through all open responses for it took 15 ms at 1,600 of them. So only
    responses that have changed since the last count are counted anew.
    """

    def __init__(self) -> None:
        #: Those that are open; the dispatcher renews their leases.
        self.responses: set[OpenResponse] = set()
        self._counts: Counter[str] = Counter()
        self._slots: Counter[EngineName] = Counter()
        self._prefixes: dict[EngineName, Counter[bytes]] = {}
        self._counted: dict[OpenResponse, Counted] = {}
        self._changed: set[OpenResponse] = set()

    def opened(self, response: OpenResponse) -> None:
        """Count a response's lanes from now on."""
        self.responses.add(response)
        self.changed(response)

    def changed(self, response: OpenResponse) -> None:
        """Note that threads of a response have begun, paused, moved or ended: count it anew before the counts are
        used."""
        self._changed.add(response)

    def closed(self, response: OpenResponse) -> None:
        """Forget a response."""
        self.responses.discard(response)
        self.changed(response)

    def counts(self) -> Counter[str]:
        """The threads on each replica; 0 for any other name."""
        self._count()
        return self._counts

    def slots(self) -> Counter[EngineName]:
        """The slots of each engine that are held or waited for: one for each attempt."""
        self._count()
        return self._slots

    def prefixes(self) -> Mapping[EngineName, Container[bytes]]:
        """The names of the beginnings of the prompts whose main threads each engine decodes."""
        self._count()
        return self._prefixes

    def _count(self) -> None:
        for response in self._changed:
            self._add(self._counted.pop(response, Counted()), -1)
            if response in self.responses:
                counted = self._counted[response] = Counted.of(response)
                self._add(counted, 1)
        self._changed.clear()

    def _add(self, counted: Counted, by: int) -> None:
        for replica in counted.lanes:
            self._counts[replica] += by
        for slot in counted.slots:
            self._slots[slot] += by
        if counted.home is not None:
            held = self._prefixes.setdefault(counted.home, Counter())
            for _, name in counted.prefixes:
                held[name] += by
                if not held[name]:
                    del held[name]


class Dispatcher:
    """Chooses replicas for the responses of one Interpreter, and renews the leases of what they decode.

    A lease works both ways. A Decoder ends what no Interpreter renews. A Decoder that does not answer a renewal within
    a lease counts as lost: a node that loses its power or its network closes no connection.
    """

    def __init__(self, decoders: DeploymentClient, config: ServeConfig, name: str = "") -> None:
        self.decoders, self.name = decoders, name
        self.lanes = Lanes()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.metrics = Metrics(PLACEMENT)
        #: The Decoders that this Interpreter may use now.
        self.replicas = CompatibleReplicas(known_replicas("Decoder"), config.version, self._version)
        self._service = config.version
        #: The kind of each model, by replica.
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._chunk, self._num_slots = config.engine.prefill_chunk, config.engine.num_slots
        self._reuses = config.engine.reuse_prefixes
        #: What each replica told last.
        self._told: dict[str, Told] = {}
        self._configured_interpreters = config.front.interpreters
        #: The Interpreters to which the Gateway of the last request sends requests; 0 if it did not say.
        self.num_routed = 0
        self._lease_s = config.decoder.lease_s
        self._silent: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def count(self, what: str) -> None:
        """Count one more of ``COUNTERS``."""
        self.counts[what] += 1
        self.metrics.count(f"pasta_{what}")

    def kind_of(self, replica: str, model: str) -> Kind | None:
        """How a replica computes a model, if it has said so."""
        return self._kinds.get(replica, {}).get(model)

    def loads(
        self, without: Set[str] = frozenset(), model: str = "", kind: Kind | None = None
    ) -> dict[str, int]:
        """Threads that decode on each responsive replica: this Interpreter's own now, and other Interpreters' as last
        reported.

        With a ``kind``, only replicas that compute ``model`` so.
        """
        return self._loads(without | self._silent, model, kind)

    def _loads(self, without: Set[str], model: str, kind: Kind | None) -> dict[str, int]:
        lanes = self.lanes.counts()
        return {
            replica: lanes[replica] + self._told.get(replica, _UNTOLD).other_lanes
            for replica in sorted(self.replicas.replicas - without)
            if kind in (None, self.kind_of(replica, model))
        }

    @property
    def num_interpreters(self) -> int:
        """How many Interpreters share the Decoders' room for requests: those that the Decoders have reported (before
        any report, the configured number), but no more than Gateways send requests to. A Decoder also counts one that
        is starting, or finishes its last requests."""
        told = [each.num_interpreters for each in self._told.values()]
        found = max(told, default=self._configured_interpreters)
        return min(found, self.num_routed or found)

    def prefixes(self, order: DecodeOrder) -> Prefixes:
        """What an order's prompt begins with; nothing if Decoders reuse no prefix."""
        return prefix_digests(order.prompt_ids, self._chunk, order.prefix_salt) if self._reuses else []

    async def home(
        self, order: DecodeOrder, prefixes: Prefixes, lost: set[str], kind: Kind | None = None
    ) -> str:
        """Choose the replica for a main thread: by load, and by how much of the prompt (``prefixes``) a replica has
        cached, or will have: it has told so, or decodes such a prompt for this Interpreter.

        A response that has begun on a replica of a ``kind`` stays with that kind. Replicas that the response has
        ``lost``, and silent ones, are chosen only when no other appears within ``OTHER_REPLICA_S``: they may only have
        been slow. Raises ``ReplicaLost`` if there is no replica for ``NO_REPLICA_S``, and ``Superseded``.
        """
        try:
            async with asyncio.timeout(NO_REPLICA_S):
                model = order.model
                if not (loads := self.loads(lost, model, kind)):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(OTHER_REPLICA_S):
                            while not (loads := self.loads(lost, model, kind)):
                                await self._change()
                while not (loads := loads or self._loads(set(), model, kind)):
                    await self._change()
        except TimeoutError:
            raise ReplicaLost(
                "there is no decoder"
                + (f" that computes in {kind.number_format}, with its weights" if kind else "")
            ) from None
        # To wait for a slot takes an answer's time, which no prefix makes up for while another replica has one free.
        told, held = {name: self._told.get(name, _UNTOLD) for name in loads}, self.lanes.slots()
        free = {
            name: lanes
            for name, lanes in loads.items()
            if held[name, order.model] + told[name].other_slots.get(order.model, 0) < self._num_slots
        }
        loads = free or loads
        decoded = self.lanes.prefixes()
        matched = {
            name: max(
                matched_tokens(prefixes, told[name].prefixes.get(order.model, ())),
                matched_tokens(prefixes, decoded.get((name, order.model), ())),
            )
            for name in loads
        }
        return choose_home(loads, matched)

    def hear(self, replica: str, told: Told) -> None:
        """Note which prefixes a replica holds now, and how much it decodes for other Interpreters."""
        self._told[replica] = told

    async def ask(self, replica: str) -> None:
        """Ask a replica for that."""
        with suppress(TimeoutError, RayActorError, ReplicaLost):
            async with asyncio.timeout(self._lease_s):
                self.hear(replica, await self.decoders.call("tell", self.name, replica=replica))

    async def stats(self) -> list[dict[str, Any]]:
        """The statistics of each replica, of any version, that tells them within ``STATS_S``. One that has been silent
        for a lease is not asked."""
        asked = sorted(known_replicas("Decoder").replicas - self._silent)
        return [each for each in await asyncio.gather(*map(self._stats, asked)) if each is not None]

    async def _stats(self, replica: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(STATS_S):
                stats: dict[str, Any] = await self.decoders.call("stats", replica=replica)
                return stats
        except (TimeoutError, RayError, RayServeException):
            return None

    async def ready(self) -> None:
        """Start following the replicas; returns when there are enough to take over the requests of the version before.
        Call it once, before anything else, on the event loop that serves requests."""
        self.decoders.open()
        self.spawn(self.replicas.follow())
        self.spawn(self._renew())
        while not self.replicas.enough:
            await self.replicas.change()

    async def _change(self) -> None:
        if self.replicas.superseded:
            raise Superseded
        await self.replicas.change()

    async def _version(self, replica: str) -> str:
        version: Version = await self.decoders.call("version", replica=replica)
        kinds = {
            model: Kind(number_format, version.weights.get(model, ""))
            for model, number_format in version.formats.items()
        }
        self._kinds[replica] = kinds
        if version.service == self._service:
            for model, kind in kinds.items():
                self._compare_weights(replica, model, kind.weights)
        return version.service

    def _compare_weights(self, replica: str, model: str, weights: str) -> None:
        """Warn if another replica of this version has read other weights: an answer is that of one or the other."""
        for other in sorted(self.replicas.replicas - {replica}):
            kind = self.kind_of(other, model)
            if kind is not None and kind.weights and weights and kind.weights != weights:
                logger.warning(
                    "replica %s has read other weights of the model %s than replica %s (%s, not %s), and requests get "
                    "answers of either: files at the model's path have changed, or nodes have different ones; deploy "
                    "new weights at another path",
                    *(replica, model, other, weights, kind.weights),
                )
                return

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that outlives its caller: in an empty context, since Serve cancels the calls that were
        made in the context of a request when that request ends."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task has failed", exc_info=error)

    async def notify(self, replica: str, method: str, *args: Any) -> bool:
        """Call a method of a replica, which may be gone; returns whether it was silent for a whole lease."""
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
            replicas = self.replicas.replicas
            self._kinds = {replica: self._kinds[replica] for replica in replicas}
            self._told = {replica: told for replica, told in self._told.items() if replica in replicas}
            for replica in replicas - self._silent:
                self.spawn(self.ask(replica))
            held: dict[str, list[tuple[OpenResponse, Attempt]]] = {replica: [] for replica in self._silent}
            for response in self.lanes.responses:
                for attempt in response.attempts.values():
                    held.setdefault(attempt.replica, []).append((response, attempt))
            for replica, attempts in held.items():
                self.spawn(self._renew_on(replica, attempts))

    async def _renew_on(self, replica: str, attempts: list[tuple[OpenResponse, Attempt]]) -> None:
        if await self.notify(replica, "renew", [attempt.order.request_id for _, attempt in attempts]):
            self._silent.add(replica)
            for response, attempt in attempts:
                response.lose(
                    attempt, ReplicaLost(f"replica {replica} has been silent for {self._lease_s} s")
                )
        else:
            self._silent.discard(replica)
