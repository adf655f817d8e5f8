"""What a request feeds in each step of its replica: the engine's slot without a model.

``LiveSlot`` drives an interpreter as ``engine/slot.py`` does, token by token. If all chunks stay at home, a slot takes
part in every step from the end of its prompt to its own end, and the tokens it feeds do not depend on other slots. So
``ScheduledSlot`` replays what a live slot fed, recorded once for each distinct answer. A test checks that both give the
same simulation.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pasta.interpreter import (
    UNBOUNDED,
    Action,
    Feed,
    Fork,
    Interpreter,
    Mode,
    Path,
    Snapshot,
    Thread,
    forced_token,
)
from pasta.simulation.script import Script

#: Whether a chunk just forked, of so many estimated tokens, is decoded where its parent is.
Stays = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Left:
    """A chunk that is to be decoded on another replica."""

    path: Path
    snapshot: Snapshot


class LiveSlot:
    """One request, or a chunk of one, in a replica: drives an interpreter. ``snapshot`` makes it a chunk of an answer
    whose home is elsewhere. With ``jump_forward`` the tokens that the grammar forces take no step.

    ``pending`` tokens are fed next: many at once while ``bulk`` (a prompt, or a chunk that came back), else those of
    its threads. ``together`` steps, the next one first, may run without the engine following what their tokens mean.
    ``held`` tokens are in the cache, ``emitted`` were decoded, ``lanes`` threads decode here.
    """

    def __init__(
        self,
        script: Script,
        stays: Stays | None = None,
        snapshot: Snapshot | None = None,
        *,
        jump_forward: bool = True,
    ) -> None:
        self._tokens, self._tags, self._stays = script.tokens, script.tags, stays
        self._jumps = jump_forward
        self._async_close = script.grammar.control.async_close
        if snapshot is None:
            self.interpreter = script.start()
        else:
            self.interpreter = Interpreter.for_chunk(script.grammar, UNBOUNDED, snapshot, strict=False)
        self.bulk, self.held, self.emitted, self.lanes, self.done = True, 0, 0, 1, False
        opened = self.interpreter.take_feeds()
        # Of each token to feed: its thread, and whether its logits choose the thread's next token.
        self._pending = deque([(0, False)] * len(self.interpreter.prompt))
        if opened:
            self._pending.extend((feed.thread, True) for feed in opened)
        else:
            self._pending[-1] = (0, True)
        self._choosing: list[int] = []
        # Chunks decoded elsewhere: their thread, and their <async>, which is fed when they come back.
        self._away: dict[int, Feed | None] = {}

    @property
    def pending(self) -> int:
        """Tokens to feed."""
        return len(self._pending)

    @property
    def together(self) -> int:
        """Steps that may run together (``engine/multi_step.py``): all but the last emit text in every thread, of an
        answer or of a topic."""
        steps = []
        for thread, chooses in self._pending:
            if not chooses:  # behind it its thread's next token, or nothing
                continue
            state = self.interpreter.threads[thread]
            if state.mode == Mode.TEXT:
                count, tags = len(state.tokens), self._tags[state.path]
                steps.append(tags[bisect_left(tags, count)] - count + 1)
            elif state.mode == Mode.TOPIC:
                steps.append(self._left_of_topic(state) + 1)
            else:
                return 1
        return min(steps, default=1)

    def _left_of_topic(self, state: Thread) -> int:
        grammar, tokens = self.interpreter.grammar, self._tokens[state.path]
        for at in range(len(state.tokens), len(tokens)):
            if not grammar.topic_mask[tokens[at]] or tokens[at] in grammar.tail.children:
                return at - len(state.tokens)
        raise AssertionError("a topic ends before its thread does")

    def take(self, most: int) -> int:
        """Feed so many of them at most, in the order in which they came; returns how many."""
        pending = self._pending
        taken = [pending.popleft() for _ in range(min(most, len(pending)))]
        self._choosing = [thread for thread, chooses in taken if chooses]
        self.held += len(taken)
        return len(taken)

    def emit(self) -> Sequence[Left]:
        """Let each thread that was fed emit its next token; returns the chunks that leave."""
        interpreter, left = self.interpreter, []
        for thread in self._choosing:
            if interpreter.done:
                break
            left += self._emit(thread)
            while self._jumps and forced_token(interpreter, thread) is not None:
                # The row before a forced token has nothing to choose.
                at = max(at for at, (fed, _) in enumerate(self._pending) if fed == thread)
                self._pending[at] = (thread, False)
                left += self._emit(thread)
        self._settle()
        return left

    def _emit(self, thread: int) -> list[Left]:
        state = self.interpreter.threads[thread]
        actions = self.interpreter.emit(thread, self._tokens[state.path][len(state.tokens)])
        self.emitted += 1
        left = self._place(actions)
        self._pending.extend(self._fed_here(self.interpreter.take_feeds()))
        return left

    def absorb(self, path: Path, response_ids: Sequence[int]) -> None:
        """A chunk comes back, decoded elsewhere: its ids in storage order, ``</async>`` last."""
        thread, opened = self._take_back(path)
        self.interpreter.drive(thread, response_ids)
        threads = self.interpreter.threads
        for feed in (opened, *self.interpreter.take_feeds()):
            # What the chunk's rows predict is known; a parent that its end has woken goes on.
            self._pending.append((feed.thread, feed.wants_logits and threads[feed.thread].running))
        self.bulk = True
        self._settle()

    def adopt(self, path: Path) -> None:
        """A chunk that was to be decoded elsewhere is decoded here after all, from its beginning."""
        thread, _ = self._take_back(path)
        self._pending.append((thread, True))
        self.bulk = True
        self._settle()

    def _place(self, actions: Iterable[Action]) -> list[Left]:
        left = []
        for action in actions:
            if isinstance(action, Fork) and self._stays is not None:
                child = self.interpreter.threads[action.child]
                self._settle()
                if not self._stays(child.estimate):
                    self._away[child.id] = None
                    left.append(Left(child.path, self.interpreter.snapshot(child.id)))
        return left

    def _fed_here(self, feeds: Iterable[Feed]) -> list[tuple[int, bool]]:
        """Without the ``<async>`` of chunks that are decoded elsewhere, and the end token of the answer."""
        kept = []
        for feed in feeds:
            if feed.thread in self._away:
                self._away[feed.thread] = feed
            elif feed.wants_logits or feed.token == self._async_close:
                kept.append((feed.thread, feed.wants_logits))
        return kept

    def _take_back(self, path: Path) -> tuple[int, Feed]:
        thread = next(away for away in self._away if self.interpreter.threads[away].path == path)
        opened = self._away.pop(thread)
        assert opened is not None
        return thread, opened

    def _settle(self) -> None:
        self.lanes = len(self.interpreter.live_threads) - len(self._away)
        self.done = self.interpreter.done


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tokens that an answer feeds and emits in each step, if all of its chunks stay at home.

    ``lanes[i]`` threads emit ``emitted[i]`` tokens in step i, of which step 0 ends the prompt; ``rows[i]`` are fed in
    step i + 1: those tokens but the last, each fork's ``<async>``, and a sync when its chunks are there.
    ``together[i]`` steps from that one on may run together. With one token a step for every thread there would be
    ``critical_path`` steps.
    """

    prompt_tokens: int
    lanes: tuple[int, ...]
    emitted: tuple[int, ...]
    rows: tuple[int, ...]
    together: tuple[int, ...]
    critical_path: int

    @classmethod
    def of(cls, script: Script, *, jump_forward: bool = True) -> "Schedule":
        """Record a live slot that has a replica to itself."""
        slot = LiveSlot(script, jump_forward=jump_forward)
        lanes, emitted, rows, together = [], [], [], []
        prompt = slot.take(slot.pending)
        while not slot.done:
            before = slot.emitted
            lanes.append(slot.lanes)
            slot.emit()
            emitted.append(slot.emitted - before)
            if not slot.done:
                together.append(slot.together)
                rows.append(slot.take(slot.pending))
        recorded = (tuple(lanes), tuple(emitted), tuple(rows), tuple(together))
        return cls(prompt, *recorded, slot.interpreter.critical_path)


class ScheduledSlot:
    """Plays a schedule back, with the attributes and methods of the ``LiveSlot`` that was recorded."""

    __slots__ = ("_at", "_schedule", "bulk", "done", "emitted", "held", "lanes", "pending", "together")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._at = schedule, 0
        self.pending, self.together = schedule.prompt_tokens, 1
        self.bulk, self.held, self.emitted, self.lanes, self.done = True, 0, 0, 1, False

    def take(self, most: int) -> int:
        """Feed them."""
        taken = min(most, self.pending)
        self.pending -= taken
        self.held += taken
        return taken

    def emit(self) -> Sequence[Left]:
        """Emit the step's tokens if the tokens that they follow from have been fed."""
        if self.pending:
            return ()
        schedule, at = self._schedule, self._at
        self.emitted += schedule.emitted[at]
        if at == len(schedule.rows):
            self.done, self.lanes = True, 0
        else:
            self.pending, self.together = schedule.rows[at], schedule.together[at]
            self._at = at = at + 1
            self.lanes = schedule.lanes[at]
        return ()


SimulatedSlot = LiveSlot | ScheduledSlot
