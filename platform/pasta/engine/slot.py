"""One request while it decodes: its interpreter, the tokens to feed, and its text in reading order."""

import functools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta.engine.ngrams import Ngrams
from pasta.engine.penalties import VisibleText
from pasta.engine.request import (
    EngineConfig,
    Event,
    ForkEvent,
    Logprobs,
    Path,
    Request,
    Result,
    ThreadProgress,
    TokenEvent,
)
from pasta.engine.text import AnswerText
from pasta.errors import UserError
from pasta.interpreter import (
    Constraint,
    Feed,
    Fork,
    Interpreter,
    Limits,
    allowed_freely,
    copy_until,
    drive_lent,
    forced_token,
    lend,
    may_emit,
    set_aside,
    take_back,
    turn,
)
from pasta.lang import Codec, render

if TYPE_CHECKING:
    from pasta.engine.choosing import Lane
    from pasta.engine.heads import HeadInput

_NOTHING = Constraint("none", frozenset())


class Slot:
    """A request in the engine. ``pending`` are the tokens to feed next; ``bulk`` while they are a prompt or
    an absorbed chunk, fed many at once, rather than one for each lane."""

    def __init__(
        self,
        request: Request,
        limits: Limits,
        codec: Codec,
        submitted: float,
        admitted: float,
        config: EngineConfig,
    ) -> None:
        self.request = request
        self.codec = codec
        self.submitted, self.admitted = submitted, admitted
        self.first_token_at = 0.0
        self.first_step = 0
        self.cached_tokens = 0
        strict = request.forced is None
        grammar = codec.grammar
        if request.snapshot is not None:
            self.interpreter = Interpreter.for_chunk(grammar, limits, request.snapshot, strict=strict)
        else:
            self.interpreter = Interpreter(
                grammar, limits, request.prompt_ids, parallel=request.parallel, strict=strict
            )
        self.bulk = True
        self.forced = None if request.forced is None else self._forced_by_path(limits, request.forced)
        # Chunks that other engines decode: the <async> of each, which is fed when the chunk comes back, and its limits.
        self.held_open: dict[int, Feed | None] = {}
        self._lent: dict[int, Limits] = {}
        #: Threads whose next tokens wait for their turn, or for lent limits to come back.
        self.waiting: dict[int, Lane] = {}
        # A forced token has no log-probability: it needs no row of logits.
        self._jumps = config.jump_forward and request.logprobs is None
        #: Where drafts are looked up, if this request wants drafts.
        self.ngrams: Ngrams | None = None
        if config.drafts and request.drafts:
            self.ngrams = Ngrams(self.interpreter.prompt)
        #: Of each thread that has emitted, what draft heads guess from.
        self.states: dict[int, HeadInput] = {}
        self._short = False
        #: The text that its threads see, for requests whose logits are changed by it.
        self.visible = (
            VisibleText(self.interpreter) if request.sampling.adjusts and self.forced is None else None
        )
        follows = request.structure if self.forced is None else None
        #: The answer's place in its grammar, if it has one.
        self.matcher = None if follows is None else follows.matcher()
        # A chunk of another engine's answer does not look for the answer's end: its home does.
        self.stops = request.sampling.stops and request.snapshot is None
        self._text = AnswerText(codec, request.sampling) if self.stops else None
        it = self.interpreter
        rows = zip(it.prompt, it.prompt_positions, it.prompt_segments, strict=True)
        feeds = [Feed(0, *row, wants_logits=False) for row in rows]
        #: Log-probabilities of the prompt's tokens from the second on, as far as they are scored.
        self.prompt_logprobs: list[Logprobs] = []
        self.pending = deque(self._continued([*feeds, *it.take_feeds(), *self._replay(request.progress)]))

    def _replay(self, progress: ThreadProgress) -> list[Feed]:
        """Replay the tokens that were decoded elsewhere; returns those to feed."""
        it = self.interpreter
        # Limits depend on the order: in another one the same tokens may come closer to a limit.
        strict, it.strict = it.strict, False
        threads = {thread.path: thread.id for thread in it.threads}
        for path, token in progress.tokens:
            thread = threads[path]
            for action in it.emit(thread, token):
                if isinstance(action, Fork):
                    child = it.threads[action.child]
                    threads[child.path] = child.id
                    self._open_text(action)
                    if (lent := progress.lent.get(child.path)) is not None:
                        set_aside(it, child.id, lent)
                        self._hold(child.id, lent)
            self._add_text(thread, token)
        it.strict = strict
        return self._fed_here(it.take_feeds())

    def _continued(self, feeds: list[Feed]) -> list[Feed]:
        """Mark the last token of each thread as the one whose logits choose its next token."""
        last = {feed.thread: at for at, feed in enumerate(feeds)}
        running = {at for thread, at in last.items() if self.interpreter.threads[thread].running}
        running |= {at for at, feed in enumerate(feeds) if self.scored(feed)}
        return [
            feed if feed.wants_logits == (at in running) else feed._replace(wants_logits=at in running)
            for at, feed in enumerate(feeds)
        ]

    def scored(self, feed: Feed) -> bool:
        """Whether a token's logits tell how likely the prompt's next token is, and that is asked for."""
        prompt = len(self.interpreter.prompt)
        return self.request.prompt_logprobs is not None and feed.position < prompt - 1

    def _forced_by_path(
        self, limits: Limits, response_ids: Sequence[int]
    ) -> dict[tuple[int, ...], list[int]]:
        it = self.interpreter
        copy = Interpreter(it.grammar, limits, len(it.prompt) * [0], strict=False)
        copy.drive(0, response_ids)
        return {thread.path: thread.tokens for thread in copy.threads}

    # -- tokens ----------------------------------------------------------------------------------------

    def take(self, most: int) -> list[Feed]:
        """The next tokens to feed, ``most`` at most."""
        if len(self.pending) <= most:
            taken, self.pending = list(self.pending), deque()
        else:
            taken = [self.pending.popleft() for _ in range(most)]
        return taken

    def skip(self, count: int) -> None:
        """Leave out the next ``count`` tokens, which the cache holds already."""
        self.cached_tokens += count
        self.take(count)

    def emit(
        self,
        thread: int,
        token: int,
        now: float,
        step: int,
        logprobs: Logprobs | None = None,
        *,
        fed: bool = False,
    ) -> list[Event]:
        """Report a token to the interpreter; returns the events that follow. A draft is ``fed`` already.

        Raises ``ConstraintError``.
        """
        actions = self.interpreter.emit(thread, token, now)
        if not self.first_token_at:
            self.first_token_at, self.first_step = now, step
        self._add_text(thread, token)
        path = self.interpreter.threads[thread].path
        events: list[Event] = [TokenEvent(self.request.request_id, now, step, thread, token, path, logprobs)]
        events += [self._fork_event(action, now, step) for action in actions if isinstance(action, Fork)]
        # A draft that ends a promise has been fed already; the chunk that it opens has not.
        self.pending.extend(self._fed_here(self.interpreter.take_feeds())[fed:])
        return events

    def _add_text(self, thread: int, token: int) -> None:
        """Add a token that the interpreter has been told of to the text, if that may end the answer."""
        if self._text:
            self._text.add(self.interpreter.threads[thread], token)

    def jump_forward(self, thread: int, now: float, step: int) -> list[Event]:
        """Emit the tokens that the grammar forces on a thread: they are fed together with the one before them."""
        events: list[Event] = []
        while self._jumps and not self.done:
            token = forced_token(self.interpreter, thread)
            if token is None or not self.may_emit(thread, token):
                break
            # The row before it has nothing to choose.
            at = max(at for at, feed in enumerate(self.pending) if feed.thread == thread)
            self.pending[at] = self.pending[at]._replace(wants_logits=False)
            events += self.emit(thread, token, now, step)
        return events

    def turn(self, thread: int) -> tuple[int, tuple[int, ...]]:
        """The sort key of a thread's next token: the order in which one token a step for each thread would come."""
        return turn(self.interpreter.threads[thread])

    def may_emit(self, thread: int, token: int) -> bool:
        """Whether a thread may emit its next token now. If not, it waits for its turn, or for lent limits."""
        it = self.interpreter
        if self.forced is not None:
            return self.forced[it.threads[thread].path][len(it.threads[thread].tokens)] == token
        if self.shares:
            fits = (allowed := it.allowed(thread)).permits(token, it.grammar)
            if self._lent and not self.request.lent and self.request.sampling.cuts:
                fits &= allowed == self.allowed(thread)  # what is cut off depends on all that may be chosen
            self._short |= not fits and not self._lent  # a chunk that cannot wait for anything is given back
            if not fits:
                return False
        return may_emit(it, thread, self.held_open)

    def may_draft(self) -> bool:
        """Whether drafts may be fed now. Also reads the text written so far, to look drafts up in it."""
        if self.ngrams is None:
            return False
        self.ngrams.read(self.interpreter.threads)
        return True

    @property
    def shares(self) -> bool:
        """Whether limits are lent by this request or to it; that must not change its text."""
        return bool(self._lent) or self.request.lent

    def allowed(self, thread: int) -> Constraint:
        """Return the tokens to choose from. ``may_emit`` may refuse the choice of a request that shares its limits."""
        if self.forced is not None:
            return _NOTHING
        return allowed_freely(self.interpreter, thread) if self.shares else self.interpreter.allowed(thread)

    def allowed_later(self, thread: int) -> Constraint:
        """Return what ``Interpreter.allowed_later`` says, or nothing in a replay."""
        return _NOTHING if self.forced is not None else self.interpreter.allowed_later(thread)

    def take_waiting(self) -> list["Lane"]:
        """Remove and return the lanes of waiting threads, to try them again."""
        waiting, self.waiting = [*self.waiting.values()], {}
        return waiting

    def absorb(self, path: Path, response_ids: Sequence[int], now: float) -> None:
        """Add a chunk that was decoded elsewhere: its tokens are fed at their positions."""
        thread, opened = self._take_back(path)
        it = self.interpreter

        def emit(thread: int, token: int) -> None:
            actions = it.emit(thread, token, now)
            self._add_text(thread, token)
            for action in actions:
                if isinstance(action, Fork):
                    self._open_text(action)

        drive_lent(it, thread, response_ids, emit)
        for feed in (opened, *it.take_feeds()):
            # The targets of the chunk's rows are known; a parent that waited for its end goes on.
            wants_logits = feed.wants_logits and it.threads[feed.thread].running
            self.pending.append(feed._replace(wants_logits=wants_logits))
        self.bulk = True

    def adopt(self, path: Path, progress: ThreadProgress) -> None:
        """Decode a chunk here after all, from the ``progress`` that it has made elsewhere."""
        _, opened = self._take_back(path)
        self.pending.extend(self._continued([opened, *self._replay(progress)]))
        self.bulk = True

    def _hold(self, thread: int, lent: Limits) -> None:
        self.held_open[thread] = None  # its <async> is taken from the interpreter's feeds below
        self._lent[thread] = lent

    def _take_back(self, path: Path) -> tuple[int, Feed]:
        threads = self.interpreter.threads
        thread = next((held for held in self.held_open if threads[held].path == path), None)
        if thread is None:
            raise UserError(f"path: chunk {path} of {self.request.request_id!r} is not decoded elsewhere")
        opened = self.held_open.pop(thread)
        take_back(self.interpreter, thread, self._lent.pop(thread))
        assert opened is not None
        return thread, opened

    @property
    def num_lanes(self) -> int:
        """Threads that decode here."""
        return len(self.interpreter.live_threads) - len(self.held_open) - len(self.waiting)

    def _fork_event(self, fork: Fork, now: float, step: int) -> ForkEvent:
        child = self.interpreter.threads[fork.child]
        place, lent = self.request.place_locally, None
        if place is not None and not place(len(self.interpreter.live_threads), child.estimate):
            lent = lend(self.interpreter, fork.child)
        if lent is not None:
            self._hold(fork.child, lent)
        self._open_text(fork)
        return ForkEvent(
            self.request.request_id,
            now,
            step,
            fork.thread,
            fork.child,
            child.path,
            self.codec.decode_text(child.topic_ids),
            child.estimate,
            None if lent is None else functools.partial(self.interpreter.snapshot, fork.child),
            lent,
        )

    def _open_text(self, fork: Fork) -> None:
        if self._text:
            self._text.fork(fork.thread, fork.child)

    def _fed_here(self, feeds: list[Feed]) -> list[Feed]:
        """Leave out the ``<async>`` of chunks that are decoded elsewhere, and the end token of the answer."""
        kept = []
        for feed in feeds:
            if feed.thread in self.held_open:
                self.held_open[feed.thread] = feed
            elif feed.wants_logits or feed.token == self.codec.control.async_close:
                kept.append(feed)
        return kept

    # -- the end ---------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether nothing more is decoded here: the answer has ended, by itself or by a stop string, or is short."""
        return self.interpreter.done or self._short or bool(self._text and self._text.ended_by)

    def result(self, now: float, step: int) -> Result:
        """The finished answer."""
        it, ended_by = self.interpreter, None if self._text is None else self._text.ended_by
        if ended_by is not None:
            it = copy_until(it, *ended_by)
        ids = it.response_ids()
        document = None
        if it.done:
            document = self.codec.decode(ids[:-1] if it.threads[0].is_chunk else ids)
        shown = "" if self._text is None else self._text.shown
        text = shown if document is None else render(document)
        reason = it.finish_reason
        if self._text is not None and ended_by is not None:
            text, document, reason = shown[: self._text.stopped_at], None, "stop"
        elif not it.done:
            reason = "short"
        return Result(
            request_id=self.request.request_id,
            response_ids=tuple(ids),
            text=text,
            document=document,
            trace=it.trace(),
            finish_reason=reason,
            prompt_tokens=len(it.prompt),
            cached_tokens=min(self.cached_tokens, len(it.prompt)),
            num_tokens=it.num_tokens,
            critical_path=it.critical_path,
            steps=step - self.first_step + 1 if self.first_token_at else 0,
            queue_s=self.admitted - self.submitted,
            ttft_s=(self.first_token_at or now) - self.submitted,
            total_s=now - self.submitted,
            prompt_logprobs=tuple(self.prompt_logprobs),
        )
