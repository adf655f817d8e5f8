"""The event loop of the simulation: replicas on one clock, arriving requests, chunks sent to other replicas."""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pasta.bounds import check_at_most, check_not_negative, check_positive, check_unread
from pasta.interpreter import Path
from pasta.placement import POLICIES, Home, Policy, choose_home
from pasta.simulation.costs import StepCosts, lane_costs
from pasta.simulation.load import Arrivals
from pasta.simulation.replica import Piece, Replica, ReplicaSizes, Shape
from pasta.simulation.script import Script
from pasta.simulation.slots import Left, LiveSlot, Schedule, ScheduledSlot, SimulatedSlot

#: Placing a request reads the load of all replicas: too many make it slow.
MOST_REPLICAS = 1024
#: The most of a section's other numbers. Beside longer times the clock would lose what an answer takes, and end in
#: infinities; a wider spread draws times of which no number is.
MOST: dict[str, float] = {
    "gpus_per_replica": 1_000_000,
    "hop_s": 1_000_000,
    "request_s": 1_000_000,
    "request_spread": 10,
    "step_factor": 1_000_000,
    "token_s": 1_000_000,
    "crowding": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """The number of replicas, and the costs of the service around them.

    ``gpus_per_replica`` is for counting them (0 where there are none). ``hop_s`` is one message between the
    Interpreter and a Decoder, ``request_s`` a request's time outside its engine (HTTP, encoding), in which it
    occupies no replica. ``step_factor`` multiplies the cost of every step.

    Where replicas and the rest of the service share ``cores`` (0: they do not), ``token_s`` is the service's
    work for one token of an engine (messages, events), in seconds of a core. A step then lasts at least as long as
    the cores need for the work of all stepping replicas. ``request_s`` grows with the replicas that step meanwhile,
    each of which counts as ``crowding`` requests.

    ``request_s`` is a median: requests' own times are log-normal around it, ``request_spread`` the standard deviation
    of their logarithm.
    """

    replicas: int = 1
    gpus_per_replica: float = 1.0
    hop_s: float = 0.002
    request_s: float = 0.0
    request_spread: float = 0.0
    step_factor: float = 1.0
    cores: int = 0
    token_s: float = 0.0
    crowding: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "replicas")
        check_at_most(self, replicas=MOST_REPLICAS)
        check_not_negative(
            self, "gpus_per_replica", "hop_s", "request_s", "request_spread", "cores", "token_s", "crowding"
        )
        check_positive(self, "step_factor")
        check_at_most(self, **MOST)
        if self.token_s and not self.cores:
            raise ValueError(f"token_s {self.token_s}: expected with cores, and only then")
        if not self.cores:
            check_unread(self, "without cores", "crowding")


@dataclass(slots=True, eq=False)
class ServedRequest:
    """One request's times, in seconds of the simulation's clock. ``spills`` chunks were decoded on another replica
    than their parent; ``returns`` chunks found no slot there and came back."""

    number: int
    script: Script
    arrival_s: float
    first_token_s: float = -1.0
    end_s: float = -1.0
    queue_s: float = 0.0
    steps: int = 0
    spills: int = 0
    returns: int = 0

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def total_s(self) -> float:
        """From arrival to the end."""
        return self.end_s - self.arrival_s

    @property
    def token_s(self) -> float:
        """Seconds for each token of the plain answer after the first: the same tokens in both modes."""
        return (self.end_s - self.first_token_s) / max(self.script.plain_tokens - 1, 1)


@dataclass(slots=True)
class Totals:
    """Sums over the replicas at one moment; ``present_s`` is the integral of the number of requests in the service."""

    now: float = 0.0
    ended: int = 0
    plain_tokens: int = 0
    busy_s: float = 0.0
    steps: int = 0
    emitted: int = 0
    present_s: float = 0.0


@dataclass(slots=True)
class SimulatedRun:
    """A simulation's outcome: the measured requests in the order of their arrival, and sums over all replicas when the
    first of them arrived (``begun``), when the last one did (``ended``), and when all had ended (``last``). ``covered``
    is the share of all steps that lies within what was calibrated, ``largest`` the largest shape of a step in each of
    its numbers, ``fill`` the share of the rows of all forwards of lanes that decode a token."""

    replicas: int
    served: list[ServedRequest] = field(default_factory=list)
    begun: Totals = field(default_factory=Totals)
    ended: Totals = field(default_factory=Totals)
    last: Totals = field(default_factory=Totals)
    covered: float = 1.0
    largest: Shape = (0, 0, 0)
    fill: float = 1.0


@dataclass(eq=False)
class _Body:
    """A piece as the cluster sees it: its request, its replica, its name, and the piece that forked it."""

    request: ServedRequest
    replica: int
    path: Path = ()
    owner: "_Body | None" = None
    piece: Piece = field(init=False)


class Cluster:
    """Simulates replicas under one load: the i-th request to come asks for script i, and after the last one for the
    first again. ``live`` drives an interpreter for every request, also where a schedule would do (slower).
    ``schedules`` keeps what is recorded for the next simulation of the same scripts."""

    def __init__(
        self,
        section: ClusterSection,
        sizes: ReplicaSizes,
        costs: StepCosts,
        scripts: Sequence[Script],
        arrivals: Arrivals,
        *,
        placement: Policy = "local",
        overhead_s: float = 0.0,
        live: bool = False,
        schedules: dict[Script, Schedule] | None = None,
    ) -> None:
        self.section, self._costs, self._scripts, self._arrivals = section, costs, scripts, arrivals
        self._jumps = sizes.jump_forward
        self._live, self._local = live or placement != "local", placement == "local"
        self._policy, self._lane_costs = POLICIES[placement], lane_costs(costs, sizes.prefill_chunk)
        self.replicas = [
            Replica(sizes, costs, overhead_s=overhead_s, factor=section.step_factor)
            for _ in range(section.replicas)
        ]
        self._schedules = {} if schedules is None else schedules
        self._bodies: dict[Piece, _Body] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._stepping = [False] * section.replicas
        self._inbox: list[list[Callable[[float], None]]] = [[] for _ in self.replicas]
        self._totals, self._present = Totals(), 0
        self._number, self._left, self._measured = itertools.count(), 0, range(0)
        self._run = SimulatedRun(section.replicas)
        self._random = random.Random("requests")

    def run(self, requests: int, warmup: int = 0) -> SimulatedRun:
        """Simulate until ``requests`` after the first ``warmup`` are done; others arrive meanwhile. Call it once."""
        self._left, self._measured = requests, range(warmup, warmup + requests)
        for moment in self._arrivals.first():
            self._at(moment, self._arrive)
        now = 0.0
        while self._left and self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        self._run.last = self._sum(now)
        self._run.served.sort(key=lambda served: served.number)
        self._cover()
        return self._run

    # -- requests --------------------------------------------------------------------------------------

    def _arrive(self, now: float) -> None:
        number = next(self._number)
        if (following := self._arrivals.after_arrival(now)) is not None:
            self._at(following, self._arrive)
        if number == self._measured.start:
            self._run.begun = self._sum(now)
        if number == self._measured.stop - 1:
            self._run.ended = self._sum(now)
        self._count(now, 1)
        request = ServedRequest(number, self._scripts[number % len(self._scripts)], now)
        home = int(choose_home(self._loads(), {}))  # so that no two answers of a trace begin alike
        body = _Body(request, home)
        self._assign(body, lambda: self._slot(body))
        self._tell(now + self._request_s(), home, lambda _: self.replicas[home].submit(body.piece))

    def _request_s(self) -> float:
        """Draw a request's time outside its engine, given the replicas that step on the same cores."""
        section, spread = self.section, self.section.request_spread
        crowd = section.crowding * sum(self._stepping)
        share = (1 + crowd) / section.cores if section.cores else 1.0
        own = self._random.lognormvariate(0.0, spread)
        return section.request_s * own * max(1.0, share)

    def _slot(self, body: _Body) -> SimulatedSlot:
        script = body.request.script
        if not self._live:
            schedule = self._schedules.get(script)
            if schedule is None:
                schedule = self._schedules[script] = Schedule.of(script, jump_forward=self._jumps)
            return ScheduledSlot(schedule)
        if self._local or not script.parallel:
            return LiveSlot(script, jump_forward=self._jumps)
        return LiveSlot(script, self._stays(body, script.prompt_tokens), jump_forward=self._jumps)

    def _end(self, body: _Body, now: float) -> None:
        request, piece = body.request, body.piece
        request.first_token_s, request.end_s = piece.first_token_s, now
        request.queue_s = piece.admitted_s - request.arrival_s
        request.steps = piece.last_step - piece.first_step + 1
        self._count(now, -1)
        self._totals.ended += 1
        self._totals.plain_tokens += request.script.plain_tokens
        if request.number in self._measured:
            self._run.served.append(request)
            self._left -= 1
        if (following := self._arrivals.after_end(now)) is not None:
            self._at(following, self._arrive)

    def _loads(self) -> dict[str, int]:
        return {_name(number): replica.load for number, replica in enumerate(self.replicas)}

    # -- chunks on other replicas ----------------------------------------------------------------------------

    def _stays(self, body: _Body, visible: int) -> Callable[[int], bool]:
        """Whether a chunk of an estimated length decodes where ``body`` does."""

        def stays(estimate: int) -> bool:
            home = Home(self.replicas[body.replica].num_lanes, self._lane_costs)
            return not self._policy.leaves(home, estimate, visible)

        return stays

    def _leave(self, owner: _Body, left: Left, now: float) -> None:
        """Have the home replica tell the Interpreter of a chunk that leaves; the Interpreter places it."""
        self._at(now + self.section.hop_s, lambda t: self._place(owner, left, t))

    def _place(self, owner: _Body, left: Left, now: float) -> None:
        chosen = int(self._policy.choose(_name(owner.replica), self._loads()))
        if chosen == owner.replica:
            self._give_back(owner, left.path, now)
            return
        body = _Body(owner.request, chosen, left.path, owner)
        script, stays = owner.request.script, self._stays(body, len(left.snapshot.token_ids))
        self._assign(body, lambda: LiveSlot(script, stays, left.snapshot, jump_forward=self._jumps))
        self._tell(now + self.section.hop_s, chosen, lambda t: self._take_in(body, t))

    def _take_in(self, body: _Body, now: float) -> None:
        replica = self.replicas[body.replica]
        if not replica.is_full:
            body.request.spills += 1
            replica.submit(body.piece)
            return
        replica.load -= 1
        body.request.returns += 1
        del self._bodies[body.piece]
        owner, path = body.owner, body.path
        assert owner is not None
        self._at(now + self.section.hop_s, lambda t: self._give_back(owner, path, t))

    def _give_back(self, owner: _Body, path: Path, now: float) -> None:
        replica = self.replicas[owner.replica]
        self._tell(now + self.section.hop_s, owner.replica, lambda t: replica.adopt(owner.piece, path))

    def _bring_back(self, body: _Body, response_ids: Sequence[int], now: float) -> None:
        owner, path = body.owner, body.path
        assert owner is not None
        replica = self.replicas[owner.replica]
        moment = now + 2 * self.section.hop_s
        self._tell(moment, owner.replica, lambda t: replica.absorb(owner.piece, path, response_ids))

    def _assign(self, body: _Body, make_slot: Callable[[], SimulatedSlot]) -> None:
        body.piece = Piece(make_slot)
        self._bodies[body.piece] = body
        self.replicas[body.replica].load += 1

    # -- steps -----------------------------------------------------------------------------------------

    def _at(self, moment: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _tell(self, moment: float, number: int, message: Callable[[float], None]) -> None:
        """Deliver a message to a replica; it takes effect between two steps."""

        def hear(now: float) -> None:
            if self._stepping[number]:
                self._inbox[number].append(message)
            else:
                message(now)
                self._step(number, now)

        self._at(moment, hear)

    def _step(self, number: int, now: float) -> None:
        replica = self.replicas[number]
        if not replica.has_work:
            return
        self._stepping[number] = True
        end_s = self._shared(replica, now, replica.begin(now))
        self._at(end_s, lambda moment: self._finish(number, moment))

    def _shared(self, replica: Replica, now: float, end_s: float) -> float:
        """When a step ends that shares its cores with other replicas."""
        section = self.section
        if not section.cores:
            return end_s
        demand_s = sum(self._stepping) * (end_s - now + replica.num_fed * section.token_s) / section.cores
        waits_s = max(0.0, demand_s - (end_s - now))
        replica.work.busy_s += waits_s
        return end_s + waits_s

    def _finish(self, number: int, now: float) -> None:
        done, left = self.replicas[number].finish(now)
        for piece, chunk in left:
            self._leave(self._bodies[piece], chunk, now)
        for piece, slot in done:
            body = self._bodies.pop(piece)
            if body.owner is None:
                self._end(body, now)
            else:
                assert isinstance(slot, LiveSlot)
                self._bring_back(body, slot.interpreter.response_ids(), now)
        self._stepping[number] = False
        messages, self._inbox[number] = self._inbox[number], []
        for message in messages:
            message(now)
        self._step(number, now)

    # -- sums ------------------------------------------------------------------------------------------

    def _count(self, now: float, change: int) -> None:
        """Update the integral of the number of requests in the service."""
        self._totals.present_s += self._present * (now - self._totals.now)
        self._totals.now = now
        self._present += change

    def _sum(self, now: float) -> Totals:
        self._count(now, 0)
        works = [replica.work for replica in self.replicas]
        totals = self._totals
        return Totals(
            now,
            totals.ended,
            totals.plain_tokens,
            sum(work.busy_s for work in works),
            sum(work.steps for work in works),
            sum(work.emitted for work in works),
            totals.present_s,
        )

    def _cover(self) -> None:
        shapes = [(shape, n) for replica in self.replicas for shape, n in replica.work.shapes.items()]
        if not shapes:
            return
        covered = sum(count for shape, count in shapes if self._costs.covers(*shape))
        self._run.covered = covered / sum(count for _, count in shapes)
        rows = sum(count * requests * lanes for (requests, lanes, _), count in shapes)
        self._run.fill = min(1.0, sum(replica.work.emitted for replica in self.replicas) / rows)
        slots, most, keys = (max(axis) for axis in zip(*(shape for shape, _ in shapes), strict=True))
        self._run.largest = (int(slots), most, int(keys))


def _name(replica: int) -> str:
    """A replica's name, in the order of their numbers."""
    return f"{replica:06}"
