"""One replica: continuous batching as ``engine/engine.py`` does it, with a cost in place of a forward.

step:  admit waiting requests  →  prefill a chunk of one of them  →  forward all lanes  →  emit
"""

import heapq
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pasta.bounds import check_not_negative, check_unread, check_within
from pasta.interpreter import Path
from pasta.simulation.costs import StepCosts
from pasta.simulation.slots import Left, LiveSlot, SimulatedSlot
from pasta.sizes import MOST_SECONDS_TOGETHER, MOST_STEPS_TOGETHER, EngineSizes

#: The engine's masks cover cached tokens in buckets of this size.
KEY_BUCKET = 64
#: A forward's slots, lanes of each, and cached tokens that each attends to.
Shape = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class ReplicaSizes(EngineSizes):
    """The sizes of a replica's engine, and the shape of its forwards.

    ``padded``: a forward has neighbouring slots, all padded to the most lanes that one of them has. Without it the
    simulator prices an engine that feeds no padding. With ``jump_forward`` the tokens that the grammar forces take no
    step. With ``multi_step`` steps that write text or topics run several at a time, where that is what was calibrated.

    ``drafts`` is the most that are drafted for a thread, each right with probability ``acceptance`` if those before it
    are: an assumption, which prices a step (``Replica``) and leaves the order of tokens as it is.

    Raises ValueError for an acceptance that is no probability.
    """

    padded: bool = True
    jump_forward: bool = True
    multi_step: bool = True
    drafts: int = 0
    acceptance: float = 0.5

    def __post_init__(self) -> None:
        EngineSizes.__post_init__(self)
        check_not_negative(self, "drafts")
        check_within(self, acceptance=(0, 1))
        if not self.drafts:
            check_unread(self, "without drafts", "acceptance")


@dataclass(slots=True, eq=False)
class Piece:
    """What one replica decodes: a response, or a chunk of one. Times in seconds of the simulation's clock, ``-1.0``
    until they are known; ``first_step`` and ``last_step`` count the replica's steps."""

    make_slot: Callable[[], SimulatedSlot]
    admitted_s: float = -1.0
    first_token_s: float = -1.0
    first_step: int = -1
    last_step: int = -1


@dataclass(slots=True)
class Work:
    """What a replica has done so far. ``shapes`` counts its forwards of lanes by their shape."""

    busy_s: float = 0.0
    steps: int = 0
    emitted: int = 0
    shapes: Counter[Shape] = field(default_factory=Counter)


class Replica:
    """Simulates one replica: slots, a queue, and steps. ``overhead_s`` is added to every step, ``factor`` multiplies
    its cost.

    ``load`` is the number of threads that decode here, of waiting requests one each.
    """

    def __init__(
        self, sizes: ReplicaSizes, costs: StepCosts, *, overhead_s: float = 0.0, factor: float = 1.0
    ) -> None:
        self.sizes, self.work, self.load = sizes, Work(), 0
        self._costs, self._overhead_s, self._factor = costs, overhead_s, factor
        self._pieces: dict[int, Piece] = {}
        self._slots: dict[int, SimulatedSlot] = {}
        self._numbers: list[int] = []  # of the slots in use, in order
        self._free = list(range(sizes.num_slots))
        self._waiting: deque[Piece] = deque()
        self._bulk: set[int] = set()
        self._next_bulk = 0
        self._fed: list[int] = []
        self._prefilled: int | None = None
        self._together = 1  # steps that run together now
        #: Tokens of lanes that the current step feeds, or the steps that run together now.
        self.num_fed = 0
        self._prices: dict[Shape, tuple[float, float | None]] = {}

    # -- requests --------------------------------------------------------------------------------------

    def submit(self, piece: Piece) -> None:
        """Queue a piece. The caller has counted it as load."""
        self._waiting.append(piece)

    @property
    def is_full(self) -> bool:
        """Whether every slot is in use or waited for: a chunk of another replica is then refused."""
        return len(self._free) <= len(self._waiting)

    @property
    def num_lanes(self) -> int:
        """Threads that decode here now, a chunk that has just been forked among them."""
        return sum(slot.lanes for slot in self._slots.values())

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting and self._free) or any(slot.pending for slot in self._slots.values())

    def absorb(self, piece: Piece, path: Path, response_ids: Sequence[int]) -> None:
        """Add a chunk that another replica has decoded to its piece here."""
        self._change(piece, lambda slot: slot.absorb(path, response_ids))

    def adopt(self, piece: Piece, path: Path) -> None:
        """Decode a chunk here after all that was to be decoded on another replica."""
        self._change(piece, lambda slot: slot.adopt(path))

    def _change(self, piece: Piece, change: Callable[[LiveSlot], None]) -> None:
        number = next(number for number, other in self._pieces.items() if other is piece)
        slot = self._slots[number]
        assert isinstance(slot, LiveSlot)
        lanes = slot.lanes
        change(slot)
        self.load += slot.lanes - lanes
        self._bulk.add(number)

    # -- the step --------------------------------------------------------------------------------------

    def begin(self, now: float) -> float:
        """Begin a step, or several together; returns when it will be done."""
        self._admit(now)
        seconds = 0.0
        self._prefilled = self._pick_bulk()
        if self._prefilled is not None:
            slot = self._slots[self._prefilled]
            count = slot.take(self.sizes.prefill_chunk)
            if not slot.pending:
                slot.bulk = False
                self._bulk.discard(self._prefilled)
            seconds += self._costs.prefill_s(count, self._keys(slot.held))
        seconds = self._overhead_s + self._factor * (seconds + self._feed_lanes())
        self.work.steps += self._together
        self.work.busy_s += seconds
        return now + seconds

    def finish(self, now: float) -> tuple[list[tuple[Piece, SimulatedSlot]], list[tuple[Piece, Left]]]:
        """End the step: returns the pieces that are done, and the chunks that leave, with the piece each is of.

        The tokens of a step are known when the whole step has ended, and those of several together with the last, as to
        the service.
        """
        done: list[tuple[Piece, SimulatedSlot]] = []
        left: list[tuple[Piece, Left]] = []
        numbers = self._fed if self._prefilled is None else [self._prefilled, *self._fed]
        for number in numbers:
            piece, slot = self._pieces[number], self._slots[number]
            lanes, emitted = slot.lanes, slot.emitted
            for _ in range(1, self._together):  # only the last of them may fork a chunk, which may leave
                slot.emit()
                slot.take(slot.pending)
            left += [(piece, chunk) for chunk in slot.emit()]
            self.load += slot.lanes - lanes
            if slot.emitted != emitted:
                self.work.emitted += slot.emitted - emitted
                if piece.first_token_s < 0:
                    piece.first_token_s, piece.first_step = now, self.work.steps
            if slot.done:
                piece.last_step = self.work.steps
                self._release(number)
                done.append((piece, slot))
        return done, left

    def _admit(self, now: float) -> None:
        while self._waiting and self._free:
            number = heapq.heappop(self._free)
            piece = self._pieces[number] = self._waiting.popleft()
            self._slots[number], piece.admitted_s = piece.make_slot(), now
            insort(self._numbers, number)
            self._bulk.add(number)

    def _release(self, number: int) -> None:
        del self._pieces[number], self._slots[number]
        self._numbers.remove(number)
        self._bulk.discard(number)
        heapq.heappush(self._free, number)

    def _pick_bulk(self) -> int | None:
        """The slot that is fed many tokens in this step: of a begun answer, else one with a prompt, in turn."""
        if not self._bulk:
            return None
        size = self.sizes.num_slots
        begun = [number for number in self._bulk if self._pieces[number].first_step >= 0]
        number = min(begun or self._bulk, key=lambda bulk: (bulk - self._next_bulk) % size)
        if not begun:
            self._next_bulk = number + 1
        return number

    def _feed_lanes(self) -> float:
        """Feed the tokens that all threads have chosen, and those that they will choose in the steps that run together
        with this one; returns the seconds of the forwards."""
        self._fed = fed = []
        self._together, self.num_fed = 1, 0
        all_rows = most_rows = most_held = all_lanes = most_lanes = 0
        slots, bulk, prefilled = self._slots, self._bulk, self._prefilled
        together = MOST_STEPS_TOGETHER if self.sizes.multi_step and prefilled is None and not bulk else 1
        for number in self._numbers:
            if number == prefilled or number in bulk:
                continue
            slot = slots[number]
            if rows := slot.pending:
                if together > 1:
                    together = min(together, slot.together)
                slot.take(rows)
                all_rows += rows
                most_rows = max(most_rows, rows)
                all_lanes += slot.lanes
                most_lanes = max(most_lanes, slot.lanes)
                most_held = max(most_held, slot.held)
                fed.append(number)
        if not fed:
            return 0.0
        keys = self._keys(most_held)
        neighbours = fed[-1] - fed[0] + 1  # slots from the first to the last that has lanes

        def shape_of(rows: int, most: int) -> Shape:
            return (neighbours, most, keys) if self.sizes.padded else (len(fed), rows / len(fed), keys)

        shape = shape_of(all_rows, most_rows)
        seconds, together_s = self._priced(shape)
        if together_s is not None and together_s < seconds:
            # Only the first feeds what a promise ends with, or a chunk opens or ends with.
            later = shape_of(all_lanes, most_lanes)
            _, later_s = self._priced(later)
            assert later_s is not None, "all shapes have one, or none"
            most = int(MOST_SECONDS_TOGETHER / (self._factor * later_s))
            self._together = max(1, min(together, most))
            if self._together > 1:
                seconds = together_s + (self._together - 1) * later_s
                self.work.shapes[later] += self._together - 1
        self.num_fed = all_rows + (self._together - 1) * all_lanes
        self.work.shapes[shape] += 1
        return seconds

    def _priced(self, shape: Shape) -> tuple[float, float | None]:
        """The seconds of a step of this shape alone, and of one among several, if these are known."""
        price = self._prices.get(shape)
        if price is None:
            price = self._prices[shape] = self._price(shape), self._costs.together_s(*shape)
        return price

    def _price(self, shape: Shape) -> float:
        """Seconds a token of each lane: those of a forward over the tokens that it emits, with as many drafts as pay.

        Of ``count`` drafts and the next token 1 + a + a² + … are emitted, a the acceptance.
        """
        slots, rows, keys = shape
        best, emitted = self._costs.lanes_s(slots, rows, keys), 1.0
        for count in range(1, self.sizes.drafts + 1):
            emitted += self.sizes.acceptance**count
            best = min(best, self._costs.lanes_s(slots, rows * (1 + count), keys) / emitted)
        return best

    def _keys(self, held: int) -> int:
        """Cached tokens that a mask covers."""
        return min(-(-held // KEY_BUCKET) * KEY_BUCKET, self.sizes.slot_tokens)
