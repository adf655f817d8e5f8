"""The engine: every step is one forward over the live lanes of all requests.

    step:  admit waiting requests  →  prefill a chunk  →  add drafts  →  forward all lanes  →  choose  →  interpret

A call may run several steps of which all but the last need no interpreting (pasta/engine/multi_step.py).

The interpreter keeps all state of a response, the runner all state of the cache.
"""

import dataclasses
import heapq
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pasta.engine.choosing import Chooser, Lane
from pasta.engine.drafts import Drafter
from pasta.engine.graphs import Recorder, recorder_for
from pasta.engine.loading import LoadedModel
from pasta.engine.multi_step import MultiStep, Plan, emit_fed_text
from pasta.engine.prefixes import Prefixes
from pasta.engine.request import (
    DoneEvent,
    EngineConfig,
    EngineFull,
    Event,
    Path,
    Request,
    Result,
    ThreadProgress,
    TokenEvent,
    UnknownRequest,
    checked_length,
)
from pasta.engine.runner import Runner
from pasta.engine.slot import Slot
from pasta.engine.step_cost import Faster
from pasta.engine.turns import NextTurns
from pasta.errors import UserError
from pasta.interpreter import Feed, Limits


class Engine:
    """Decodes requests on one model. Not thread-safe: one thread calls it (see ``AsyncEngine``).

    An error in one request ends only that request (``DoneEvent.error``); ``step`` raises errors that concern all.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig | None = None, recorder: Recorder | None = None
    ) -> None:
        """``recorder`` captures steps; by default what the configuration says. Raises ``UserError`` if that cannot be
        done here."""
        self.loaded = loaded
        self.config = config or EngineConfig()
        self.codec = loaded.codec
        self.runner = Runner(loaded, self.config, recorder or recorder_for(loaded, self.config))
        self.runner.prepare()
        self.drafter = Drafter(self.config, self.runner, loaded.heads)
        self.prefixes = Prefixes(self.runner, self.config, lambda: self.drafter.cost.row_s)
        self.turns = NextTurns(self.runner, self.prefixes, self.codec, self.config)
        self._chooser = Chooser(self.runner.constraints, self.codec)
        self._multi_step = MultiStep(self.runner, self._chooser)
        #: By the bits of the number of lanes.
        self._faster: defaultdict[int, Faster] = defaultdict(Faster)
        self._slots: list[Slot | None] = [None] * self.config.num_slots
        self._waiting: deque[tuple[str, Request, Limits, float]] = deque()
        self._arrivals: dict[str, list[Callable[[Slot], None]]] = {}
        self._numbers = itertools.count()
        self._next_bulk = 0
        self.num_steps = 0

    # -- requests --------------------------------------------------------------------------------------

    def submit(self, request: Request) -> str:
        """Queue a request; returns its id. Raises ``UserError`` if it can never fit."""
        request_id = request.request_id or f"request-{next(self._numbers)}"
        if request_id in self.lanes_by_request:
            raise UserError(f"request_id: {request_id!r} is in use; expected a new one")
        if request.snapshot is not None and self.num_free <= 0:
            # Its home waits for this chunk: engines whose requests wait for each other's slots would deadlock.
            raise EngineFull("snapshot: no slot is free for a chunk")
        request = request.replace(request_id=request_id)
        self._waiting.append((request_id, request, self.fit(request), time.perf_counter()))
        return request_id

    def fit(self, request: Request) -> Limits:
        """Return the request's limits, reduced to the model's context and the cache of a slot.

        Raises ``UserError`` if the model cannot read the prompt, or it leaves no room for an answer.
        """
        if request.parallel and not self.codec.parallel:
            raise UserError("parallel: true, but this model has no control tokens; expected false")
        if request.structure is not None and request.parallel:
            raise UserError("parallel: true, but a structured answer has no promises; expected false")
        ids = request.prompt_ids if request.snapshot is None else request.snapshot.token_ids
        prompt = checked_length(ids, self.runner.model_config.vocab_size)
        room = self.context - prompt - 1
        if room < 1:
            raise UserError(
                f"prompt: {prompt} tokens, but the context holds {self.context}; shorten the prompt"
            )
        if request.forced is not None and len(request.forced) > room:
            raise UserError(
                f"forced response: {len(request.forced)} tokens, but the context leaves room for {room}"
            )
        return dataclasses.replace(
            request.limits,
            max_tokens=min(request.limits.max_tokens, room),
            max_positions=min(request.limits.max_positions, self.loaded.max_positions),
        )

    def cancel(self, request_id: str) -> bool:
        """Stop a request and free its cache; returns whether it was there."""
        for number, slot in enumerate(self._slots):
            if slot and slot.request.request_id == request_id:
                self._free(number)
                return True
        for waiting in self._waiting:
            if waiting[0] == request_id:
                self._waiting.remove(waiting)
                self._arrivals.pop(request_id, None)
                return True
        return False

    def absorb(self, request_id: str, path: Path, response_ids: Sequence[int]) -> None:
        """Add chunk ``path``, decoded elsewhere, to a request: its ids in storage order, ``</async>`` last.

        A request that waits for a slot gets the chunk together with the slot. Raises ``UnknownRequest`` if there is no
        such request, ``UserError`` if the chunk is not expected, ``ConstraintError`` if the ids are not one chunk
        within what it was lent.
        """
        self._when_admitted(request_id, lambda slot: slot.absorb(path, response_ids, time.perf_counter()))

    def adopt(self, request_id: str, path: Path, progress: ThreadProgress) -> None:
        """Decode chunk ``path`` here after all, from the progress that it has made elsewhere.

        Raises ``UnknownRequest`` if there is no such request, ``UserError`` if the chunk is not expected.
        """
        self._when_admitted(request_id, lambda slot: slot.adopt(path, progress))

    def _when_admitted(self, request_id: str, what: Callable[[Slot], None]) -> None:
        for slot in self._slots:
            if slot and slot.request.request_id == request_id:
                what(slot)
                return
        if any(waiting[0] == request_id for waiting in self._waiting):
            self._arrivals.setdefault(request_id, []).append(what)
            return
        raise UnknownRequest(f"request_id: {request_id!r} is not decoding here")

    @property
    def has_requests(self) -> bool:
        """Whether a step would do anything for a request."""
        return bool(self._waiting) or any(slot and slot.pending for slot in self._slots)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: for a request, or for a conversation's next turn while there is none."""
        return self.has_requests or (self.turns.pending and not self.num_active)

    @property
    def num_active(self) -> int:
        """Requests that hold a slot."""
        return sum(slot is not None for slot in self._slots)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def num_lanes(self) -> int:
        """Threads that decode a token in the next step."""
        return sum(slot.num_lanes for slot in self._slots if slot)

    @property
    def lanes_by_request(self) -> dict[str, int]:
        """The threads of each request that decode a token in the next step; 1 for a request that waits for a slot."""
        lanes = {slot.request.request_id: slot.num_lanes for slot in [*self._slots] if slot}
        return dict.fromkeys((waiting[0] for waiting in [*self._waiting]), 1) | lanes

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return min(self.config.slot_tokens, self.loaded.max_positions)

    @property
    def num_free(self) -> int:
        """Slots that no request holds or waits for."""
        return len(self._slots) - self.num_active - len(self._waiting)

    def generate(self, request: Request) -> Result:
        """Decode one request to its end (the engine must have no other work). Raises what goes wrong with it."""
        (result,) = self.decode([request])
        return result

    def decode(self, requests: Iterable[Request], at_once: int | None = None) -> Iterator[Result]:
        """Decode requests to their ends (the engine must have no other work); yields each result when it is there.

        All are submitted at once, or, with ``at_once``, so many of them and another one whenever one ends. Raises what
        goes wrong with one of them.
        """
        waiting = iter(requests)
        for request in islice(waiting, at_once):
            self.submit(request)
        while self.has_work:
            for event in self.step():
                if isinstance(event, DoneEvent):
                    for request in islice(waiting, 1):
                        self.submit(request)
                    yield event.outcome()

    # -- the step --------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one step for every request that can go on; returns its events."""
        with self.runner.threads():
            return self._step()

    def _step(self) -> list[Event]:
        if self.turns.pending and not self._waiting and not self.num_active:
            self.turns.step()
            return []
        self.turns.stop()
        self.num_steps += 1
        events = self._admit()
        events += self._wake()
        events += self._share()
        if (bulk := self._pick_bulk()) is not None:
            slot = self._slots[bulk]
            assert slot is not None
            feeds = slot.take(self.runner.prefilled_at_once(self.config.prefill_chunk))
            slot.bulk = bool(slot.pending)
            events += self._forward(range(bulk, bulk + 1), {bulk: feeds}, prefill=True)
        lanes = {
            number: slot.take(len(slot.pending))
            for number, slot in enumerate(self._slots)
            if slot and slot.pending and not slot.bulk and number != bulk
        }
        if lanes:
            # Nobody waits for others' steps: neither who is prefilled still nor who has just been.
            alone = bulk is not None or any(slot and slot.bulk for slot in self._slots)
            events += self._decode(range(min(lanes), max(lanes) + 1), lanes, alone=alone)
        return events

    def _admit(self) -> list[Event]:
        events: list[Event] = []
        for number, slot in enumerate(self._slots):
            if slot is None and self._waiting:
                request_id, request, limits, submitted = self._waiting.popleft()
                arrivals = self._arrivals.pop(request_id, ())
                try:
                    admitted = Slot(request, limits, self.codec, submitted, time.perf_counter(), self.config)
                    self._slots[number] = admitted
                    for arrival in arrivals:
                        arrival(admitted)
                    self.prefixes.admit(number, admitted)
                except Exception as error:
                    events.append(self._failed(number, request_id, error))
        return events

    def _share(self) -> list[Event]:
        """Continue requests that waited for another one's prefill; choose the first token of those with nothing left to
        feed."""
        events: list[Event] = []
        for number, slot in enumerate(self._slots):
            if slot and slot.bulk and (logits := self.prefixes.advance(number, slot)) is not None:
                slot.bulk = False
                events += self._advance(
                    number, slot, [self._chooser.lane(slot, 0, logits[None])], time.perf_counter()
                )
        return events

    def _pick_bulk(self) -> int | None:
        """The slot that is fed many tokens in this step: one whose answer has begun, since all of its threads wait for
        a chunk that it takes back; else one with a prompt, in turn."""
        prompts = []
        for number in (*range(self._next_bulk, len(self._slots)), *range(self._next_bulk)):
            slot = self._slots[number]
            if slot and slot.bulk and slot.pending and not self.prefixes.waits(number):
                if slot.first_token_at:
                    return number
                prompts.append(number)
        if not prompts:
            return None
        self._next_bulk = prompts[0] + 1
        return prompts[0]

    def _forward(self, numbers: range, feeds: dict[int, list[Feed]], *, prefill: bool = False) -> list[Event]:
        slots = {number: slot for number in feeds if (slot := self._slots[number])}
        rows = self._chooser.rows(slots, feeds, {} if prefill else self.drafter.allowed)
        sees = {number: slot.interpreter.sees for number, slot in slots.items()}
        scores = self.runner.forward(numbers, feeds, sees, self._chooser.choices(rows), prefill)
        if len(numbers) == 1:
            self.prefixes.fed(numbers.start, feeds[numbers.start], scores.logits)
        lanes = self._chooser.lanes(
            slots, feeds, rows, scores, self.runner.places, *self.drafter.reads(rows, self.runner.hidden)
        )
        now = time.perf_counter()  # all tokens of a step have the same time
        events: list[Event] = []
        for number, slot in slots.items():
            events += self._advance(number, slot, lanes[number], now)
        self.drafter.learn(lanes)
        return events

    def _decode(self, numbers: range, feeds: dict[int, list[Feed]], *, alone: bool) -> list[Event]:
        """Run a step that feeds these tokens, with drafts; or, unless it has to be ``alone``, several without, where
        that is faster."""
        slots = {number: slot for number in feeds if (slot := self._slots[number])}
        lanes, begun = sum(map(len, feeds.values())), time.perf_counter()
        plan = None
        if self.config.multi_step and self.runner.loops and not alone:
            plan = self._multi_step.plan(slots, feeds, self.drafter.cost.at(lanes))
        faster = self._faster[lanes.bit_length()]
        drafts = self.config.drafts and any(slot.ngrams is not None for slot in slots.values())
        if plan is not None and (not drafts or faster.is_together()):
            together, events = True, self._forward_steps(numbers, feeds, slots, plan)
        else:
            self.drafter.add(slots, feeds, numbers)
            forward_begun = time.perf_counter()
            together, events = False, self._forward(numbers, feeds)
            seconds = time.perf_counter() - forward_begun - self.drafter.guessed_s
            self.drafter.cost.add(self.runner.rows_computed, seconds)
        if plan is not None:  # it could have been run in the other way
            tokens = sum(isinstance(event, TokenEvent) for event in events)
            faster.learn(tokens, time.perf_counter() - begun, together=together)
        return events

    def _forward_steps(
        self, numbers: range, feeds: dict[int, list[Feed]], slots: dict[int, Slot], plan: Plan
    ) -> list[Event]:
        lanes, steps = self._multi_step.forward(numbers, slots, feeds, plan, self.num_steps)
        self.num_steps += steps - 1
        events: list[Event] = []
        for number, slot in slots.items():
            own = emit_fed_text(slot, lanes[number])
            own += self._advance(number, slot, lanes[number], time.perf_counter())
            events += sorted(own, key=lambda event: (isinstance(event, DoneEvent), event.time))
        return events

    def _wake(self) -> list[Event]:
        """Continue threads that waited for their turn, or for lent limits to come back."""
        events: list[Event] = []
        for number, slot in enumerate(self._slots):
            if slot and slot.waiting:
                events += self._advance(number, slot, [], time.perf_counter())
        return events

    def _advance(self, number: int, slot: Slot, lanes: Iterable[Lane], now: float) -> list[Event]:
        """Let the threads of a slot emit the tokens chosen for them, first in turn first, and see what follows."""
        events: list[Event] = []
        ready = [(slot.turn(lane.thread), lane) for lane in (*lanes, *slot.take_waiting())]
        heapq.heapify(ready)
        step = self.num_steps
        while ready and not slot.done:
            lane = heapq.heappop(ready)[1]
            if lane.moments:
                now, step = lane.moments[lane.at]
            try:
                token, logprobs = self._chooser.next_token(lane)
                if not slot.may_emit(lane.thread, token):
                    self.runner.hide(number, lane.rejected)
                    slot.waiting[lane.thread] = lane.kept()
                elif lane.drafted(token):
                    events += slot.emit(lane.thread, token, now, step, logprobs, fed=True)
                    lane.at += 1
                    heapq.heappush(ready, (slot.turn(lane.thread), lane))
                else:
                    self.runner.hide(number, lane.rejected)
                    events += slot.emit(lane.thread, token, now, step, logprobs)
                    self.drafter.remember(slot, lane)
                    events += slot.jump_forward(lane.thread, now, step)
            except Exception as error:
                return [*events, self._failed(number, slot.request.request_id, error)]
        if slot.done:
            # In steps together the order of turns is not that of steps where a thread has run ahead.
            now, step = max(((event.time, event.step) for event in events), default=(now, step))
            result = slot.result(now, step)
            self.turns.add(slot.request, result.text)
            events.append(DoneEvent(slot.request.request_id, now, step, 0, result.finish_reason, result))
            self._free(number)
        return events

    def _failed(self, number: int, request_id: str, error: Exception) -> DoneEvent:
        """End a request that failed by its own fault. After a user's mistake the cache holds sound numbers."""
        self._free(number, failed=not isinstance(error, UserError))
        return DoneEvent(request_id, time.perf_counter(), self.num_steps, 0, "failed", None, error)

    def _free(self, number: int, *, failed: bool = False) -> None:
        self._slots[number] = None
        self.prefixes.leave(number, failed=failed)
