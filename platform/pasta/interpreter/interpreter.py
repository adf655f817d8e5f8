"""The interpreter: tokens in, actions out. Nothing else in the code base decides what a tag means.

It does no I/O and knows no model. A driver (the engine's step loop, the training linearisation, a
simulator, a test) asks ``allowed`` what a thread may emit, reports each token to ``emit``, and takes the tokens that
the next forward must feed from ``take_feeds``. Segments, visibility and positions are kept as DESIGN
section 3 defines them: ``sees[s]`` is the bitmask of segments that segment ``s`` sees, itself included.
"""

from collections.abc import Sequence
from typing import Self

from pasta.interpreter.limits import MAX_TOPIC_PIECE, Base, Constraint, ConstraintError, Limits
from pasta.interpreter.snapshot import Snapshot
from pasta.interpreter.storage import Emit, drive, stored_ids
from pasta.interpreter.thread import Action, End, Feed, Finish, Fork, Join, Mode, Thread, Wait
from pasta.interpreter.trace import Trace, trace_of
from pasta.lang.document import ESTIMATE_STEP, MAX_TOPIC_CHARS
from pasta.lang.grammar import TagGrammar


class Interpreter:
    """Keeps the thread tree of one response, and decides what each tag in it means.

    ``prompt`` are the prompt's token ids (positions 0, 1, …, in segment 0). With ``parallel`` false no
    promise and no sync is allowed: sequential decoding. With ``strict`` false ``emit`` checks the
    grammar but not the limits: for documents that exist already.
    """

    def __init__(
        self,
        grammar: TagGrammar,
        limits: Limits,
        prompt: Sequence[int],
        *,
        parallel: bool = True,
        strict: bool = True,
    ) -> None:
        self.grammar = grammar
        self.limits = limits
        self.prompt = list(prompt)
        self.num_prompt = len(self.prompt)  # for a chunk: text after it is text that the chunk sees
        self.prompt_positions = list(range(len(self.prompt)))
        self.prompt_segments = [0] * len(self.prompt)
        self.parallel = parallel
        self.strict = strict
        self.sees: list[int] = [1]
        main = Thread(0, (), None, 0, segment=0, next_position=len(self.prompt), clock=0, subtree=1)
        self.threads: list[Thread] = [main]
        self.truncated = self.repeated = self.done = False
        self.num_tokens = self.lent_threads = self.lent_tokens = self._open_promises = 0
        self._reserved = main.reserved
        self._feeds: list[Feed] = []
        self._tag_cost = grammar.tag_overhead + limits.max_topic_tokens
        #: Positions that a promise needs at least, tokens of its tag among them, and its parent behind it.
        self.promise_span = self._tag_cost + grammar.positions.room(ESTIMATE_STEP) + 2
        self._constraints: dict[tuple[Base, tuple[int, ...]], Constraint] = {}
        # What may follow a topic, by the node of the grammar's tail and the largest estimate: many tokens.
        self._tails: dict[tuple[Base, int, int], Constraint] = {}

    @classmethod
    def for_chunk(
        cls, grammar: TagGrammar, limits: Limits, snapshot: Snapshot, *, strict: bool = True
    ) -> Self:
        """Make an interpreter whose main thread is one chunk of a response that another interpreter keeps.

        The snapshot's tokens take the prompt's place; ``<async>`` is fed first.
        """
        self = cls(grammar, limits, snapshot.token_ids, strict=strict)
        self.num_prompt = snapshot.num_prompt
        self.prompt_positions, self.prompt_segments = list(snapshot.positions), list(snapshot.segments)
        self.sees = list(snapshot.sees)
        root = self.threads[0]
        root.path, root.depth, root.is_chunk = snapshot.path, len(snapshot.path), True
        root.segment = self._new_segment((1 << len(self.sees)) - 1)
        root.subtree = 1 << root.segment
        root.next_position = snapshot.start_position
        self._open_chunk(root)
        return self

    # -- constraints ----------------------------------------------------------------------------

    def allowed(self, thread: int) -> Constraint:
        """Return the token ids that ``thread`` may emit next. Raises ``ConstraintError`` if it is not running."""
        t = self.threads[thread]
        if t.mode == Mode.TEXT:
            return self._allowed_in_text(t)
        if t.mode == Mode.OPEN:
            return self._only(self.grammar.open_ids[t.open_index])
        if t.mode == Mode.TOPIC:
            if t.topic_chars == 0:
                return self._constraint("topic", ())
            is_full = (
                t.topic_chars + MAX_TOPIC_PIECE > MAX_TOPIC_CHARS
                or len(t.tokens) - t.topic_start >= self.limits.max_topic_tokens
            )
            return self._tail_choices("none" if is_full else "topic", t)
        if t.mode == Mode.TAIL:
            return self._tail_choices("none", t)
        if t.mode == Mode.CLOSE:
            return self._only(self.grammar.control.close)
        raise ConstraintError(f"thread {thread} is {t.mode.name.lower()}: it emits nothing")

    def allowed_later(self, thread: int) -> Constraint:
        """Return what ``thread`` may emit after its next token if that is text, or text of the topic that it is
        writing, and no limit is near."""
        t = self.threads[thread]
        return self._tail_choices("topic", t) if t.mode == Mode.TOPIC else self.allowed(thread)

    def _allowed_in_text(self, t: Thread) -> Constraint:
        control, room = self.grammar.control, self.room(t)
        ends = (control.async_close,) if t.is_chunk else tuple(self.grammar.eos_ids)
        if room < 1 or self.limits.repetition_detection.ends(t, self.threads):
            return self._constraint("none", ends)
        if not self.parallel:
            return self._constraint("text", ends)
        may_promise = (
            room >= self._tag_cost + 2
            and self.threads_left > 0
            and t.depth < self.limits.max_depth
            and t.next_position + self.promise_span < self.limits.max_positions
        )
        promise = (control.promise,) if may_promise else ()
        return self._constraint("text", (*ends, control.sync, *promise))

    @property
    def threads_left(self) -> int:
        """How many more threads the limits allow."""
        return self.limits.max_threads - len(self.threads) - self._open_promises - self.lent_threads

    @property
    def tokens_left(self) -> int:
        """How many more tokens the limits allow, apart from those that every thread needs to end."""
        return self.limits.max_tokens - self.num_tokens - self._reserved

    def room(self, t: Thread, spare: int = 0) -> int:
        """How many more tokens fit into a thread; ``spare`` of those reserved for threads to end count as free."""
        limits = self.limits
        room = min(self.tokens_left + spare, limits.max_positions - t.next_position - 1)
        return min(room, limits.max_chunk_tokens - len(t.tokens) - 1) if t.is_chunk else room

    def _tail_choices(self, base: Base, t: Thread) -> Constraint:
        node = t.tail or self.grammar.tail
        left = self.limits.max_positions - t.next_position - node.depth_below - 4
        largest = max(self.grammar.positions.largest(left), ESTIMATE_STEP)
        key = base, id(node), min(largest, node.largest_child)
        if (found := self._tails.get(key)) is None:
            fits = (token for token, child in node.children.items() if child.smallest <= largest)
            found = self._tails[key] = Constraint(base, frozenset(fits))
        return found

    def _only(self, token: int) -> Constraint:
        return self._constraint("none", (token,))

    def _constraint(self, base: Base, extra: tuple[int, ...]) -> Constraint:
        found = self._constraints.get((base, extra))
        if found is None:
            found = self._constraints[base, extra] = Constraint(base, frozenset(extra))
        return found

    # -- events ----------------------------------------------------------------------------------

    def emit(self, thread: int, token: int, time: float = 0.0) -> tuple[Action, ...]:
        """Record that ``thread`` has produced ``token``; returns the actions that follow.

        Raises :class:`ConstraintError`, leaving the state as it was, if the token is not allowed.
        """
        t = self.threads[thread]
        if not t.running:
            raise ConstraintError(f"thread {thread} is {t.mode.name.lower()}: it emits nothing")
        if self.strict and not self.allowed(thread).permits(token, self.grammar):
            raise ConstraintError(f"token {token} is not allowed in thread {thread} ({t.mode.name.lower()})")
        if t.mode == Mode.TEXT:
            return self._emit_in_text(t, token, time)
        self._emit_in_tag(t, token, time)
        return self._fork(t) if token == self.grammar.control.close else ()

    def take_feeds(self) -> list[Feed]:
        """Return the tokens that the next forward must feed, in the order in which they were emitted."""
        feeds, self._feeds = self._feeds, []
        return feeds

    def _emit_in_text(self, t: Thread, token: int, time: float) -> tuple[Action, ...]:
        grammar, control = self.grammar, self.grammar.control
        if 0 <= token < len(grammar.text_mask) and grammar.text_mask[token]:
            self._append(t, token, time)
        elif token == control.promise and self.parallel:
            self._append(t, token, time)
            t.mode, t.open_index = Mode.OPEN, 0
            self._open_promises += 1
            # The rest of the tag, <async>, </async>, and this thread's end.
            self.reserve(t, self._tag_cost + 2)
        elif token == control.sync and self.parallel:
            return self._sync(t, time)
        elif token == control.async_close if t.is_chunk else token in grammar.eos_ids:
            self.truncated |= self.room(t, self.lent_tokens) < 1
            self.repeated |= self.limits.repetition_detection.ends(t, self.threads)
            self.reserve(t, 0)
            self._append(t, token, time, wants_logits=False)
            t.mode = Mode.ENDED
            return self._settle(t)
        else:
            raise ConstraintError(f"token {token} has no place in the text of thread {t.id}")
        return ()

    def _emit_in_tag(self, t: Thread, token: int, time: float) -> None:
        grammar = self.grammar
        tail = grammar.tail if t.mode == Mode.TOPIC and t.topic_chars else t.tail
        if t.mode == Mode.OPEN and token == grammar.open_ids[t.open_index]:
            t.open_index += 1
            if t.open_index == len(grammar.open_ids):
                t.mode, t.topic_chars, t.tail = Mode.TOPIC, 0, None
                t.topic_start = len(t.tokens) + 1
        elif t.mode in (Mode.TOPIC, Mode.TAIL) and tail is not None and token in tail.children:
            if t.mode == Mode.TOPIC:
                t.topic_end = len(t.tokens)
            t.mode, t.tail = Mode.TAIL, tail.children[token]
            if t.tail.estimate is not None:
                t.mode, t.promised = Mode.CLOSE, t.tail.estimate
        elif t.mode == Mode.TOPIC and 0 <= token < len(grammar.topic_mask) and grammar.topic_mask[token]:
            t.topic_chars += grammar.topic_chars[token]
        elif not (t.mode == Mode.CLOSE and token == grammar.control.close):
            raise ConstraintError(f"token {token} has no place in the promise of thread {t.id}")
        self._append(t, token, time)
        if t.reserved > 1:
            self.reserve(t, t.reserved - 1)

    def _append(self, t: Thread, token: int, time: float, *, wants_logits: bool = True) -> None:
        t.clock += 1
        self.num_tokens += 1
        t.tokens.append(token)
        t.positions.append(t.next_position)
        t.segments.append(t.segment)
        t.steps.append(t.clock)
        t.times.append(time)
        self._feeds.append(Feed(t.id, token, t.next_position, t.segment, wants_logits))
        t.next_position += 1

    def reserve(self, t: Thread, tokens: int) -> None:
        """Reserve ``tokens`` tokens for a thread to end; replaces its earlier reservation."""
        self._reserved += tokens - t.reserved
        t.reserved = tokens

    # -- fork, sync, end -------------------------------------------------------------------------------

    def _new_segment(self, visible: int) -> int:
        segment = len(self.sees)
        self.sees.append(visible | 1 << segment)
        return segment

    def _fork(self, parent: Thread) -> tuple[Action, ...]:
        visible = self.sees[parent.segment]
        segment = self._new_segment(visible)
        child = Thread(
            id=len(self.threads),
            path=(*parent.path, len(parent.children)),
            parent=parent.id,
            depth=parent.depth + 1,
            segment=segment,
            next_position=parent.next_position,
            clock=parent.clock,
            is_chunk=True,
            topic_ids=tuple(parent.tokens[parent.topic_start : parent.topic_end]),
            estimate=parent.promised,
            subtree=1 << segment,
        )
        self.threads.append(child)
        self._open_promises -= 1
        self._reserved += child.reserved
        self.reserve(parent, 1)
        parent.children.append((len(parent.tokens), child.id))
        parent.outstanding.append(child.id)
        parent.unfinished += 1
        parent.mode, parent.tail = Mode.TEXT, None
        parent.segment = self._new_segment(visible)
        parent.next_position += self.grammar.positions.room(parent.promised)
        self._open_chunk(child)
        return (Fork(parent.id, child.id),)

    def _open_chunk(self, child: Thread) -> None:
        """Feed <async>, which is given and not decoded: it takes a place in the cache but no step."""
        self.num_tokens += 1
        self._feeds.append(
            Feed(
                child.id,
                self.grammar.control.async_open,
                child.next_position,
                child.segment,
                wants_logits=True,
            )
        )
        child.next_position += 1

    def _sync(self, t: Thread, time: float) -> tuple[Action, ...]:
        sync = self.grammar.control.sync
        if not t.outstanding:
            self._append(t, sync, time)
            return ()
        t.mode = Mode.WAITING
        t.clock += 1
        self.num_tokens += 1
        t.tokens.append(sync)
        t.steps.append(t.clock)
        t.times.append(time)
        return (Wait(t.id),) if t.unfinished else (self._join(t),)

    def _join(self, t: Thread) -> Join:
        visible = self.sees[t.segment]
        for child in t.outstanding:
            visible |= self.threads[child].subtree
        joined, t.outstanding = tuple(t.outstanding), []
        ready = max(self.threads[child].end_clock for child in joined)
        if ready > t.clock:
            t.waits.append((t.clock, ready))
            t.clock = ready
        t.segment = self._new_segment(visible)
        t.mode = Mode.TEXT
        t.positions.append(t.next_position)
        t.segments.append(t.segment)
        self._feeds.append(
            Feed(t.id, self.grammar.control.sync, t.next_position, t.segment, wants_logits=True)
        )
        t.next_position += 1
        return Join(t.id, joined)

    def _settle(self, t: Thread) -> tuple[Action, ...]:
        """Propagate a thread's end: a parent that waits at a sync goes on, one that has ended is done."""
        actions: list[Action] = []
        while t.mode == Mode.ENDED and t.unfinished == 0:
            t.mode = Mode.DONE
            for _, child in t.children:
                t.subtree |= self.threads[child].subtree
            t.subtree |= self._own_segments(t)
            t.end_clock = max([t.clock, *(self.threads[child].end_clock for _, child in t.children)])
            if t.parent is None:
                self.done = True
                actions.append(End(self.finish_reason))
                break
            actions.append(Finish(t.id))
            t = self.threads[t.parent]
            t.unfinished -= 1
            if t.mode == Mode.WAITING and t.unfinished == 0:
                actions.append(self._join(t))
        return tuple(actions)

    @staticmethod
    def _own_segments(t: Thread) -> int:
        mask = 1 << t.segment
        for segment in set(t.segments):
            mask |= 1 << segment
        return mask

    # -- results ---------------------------------------------------------------------------------------

    @property
    def finish_reason(self) -> str:
        """``"length"`` if a thread was out of room, else ``"repetition"`` if one was ended because it repeated itself,
        else ``"stop"``."""
        if self.truncated:
            return "length"
        return "repetition" if self.repeated else "stop"

    @property
    def critical_path(self) -> int:
        """Steps to the end (so far, if not done) if every live thread decodes one token a step."""
        return max(max(t.clock, t.end_clock) for t in self.threads)

    @property
    def live_threads(self) -> list[int]:
        """Ids of the threads that have a next token to emit."""
        return [t.id for t in self.threads if t.running]

    def response_ids(self, thread: int = 0) -> list[int]:
        """Return the response's token ids in storage order (so far); of a chunk, those after ``<async>``."""
        return stored_ids(self.threads, thread, self.grammar.control.async_open)

    def drive(self, thread: int, ids: Sequence[int], emit: Emit | None = None) -> None:
        """Emit a thread's whole response from its ids in storage order (what ``response_ids`` returns), by ``emit``
        of this interpreter or one that calls it.

        Raises ``ConstraintError`` if the ids are not one well-formed thread.
        """
        drive(self.threads, self.grammar.control, emit or self.emit, thread, ids)

    def snapshot(self, thread: int) -> Snapshot:
        """Return what another engine needs to decode chunk ``thread``: the state right before its ``<async>``."""
        t = self.threads[thread]
        assert t.is_chunk, f"thread {thread} is not a chunk"
        start, own = t.async_place
        visible = self.sees[own] & ~(1 << own)
        rows = list(zip(self.prompt, self.prompt_positions, self.prompt_segments, strict=True))
        for other in self.threads:
            if other.is_chunk:
                rows.append((self.grammar.control.async_open, *other.async_place))
            rows += zip(other.tokens, other.positions, other.segments, strict=False)
        return Snapshot.renumbered(rows, self.sees, visible, start, t.path, self.num_prompt)

    def trace(self) -> Trace:
        """Return the record of which thread decoded which token when; pictures and reports are made from it."""
        return trace_of(self.threads, self.critical_path, self.num_tokens)
