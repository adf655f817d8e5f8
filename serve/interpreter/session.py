"""Follows one response: takes tokens, gives out text in reading order, events and statistics. No I/O.

The session feeds an interpreter of its own (pasta.interpreter) with the tokens that Decoders report. So it knows the
state of every thread: what to show, and what another replica needs to continue a lost chunk.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pasta.engine import SamplingParams
from pasta.interpreter import (
    Action,
    Finish,
    Fork,
    Interpreter,
    Join,
    Limits,
    Mode,
    ReadingOrder,
    Snapshot,
    Wait,
    copy_until,
)
from pasta.lang import Codec, TextStream, to_text
from serve.observe.trace import PlacementEvent, chrome_trace, sync_wait_s, way
from serve.wire import Decoded, Delta, Finished, Mark, Path, TextToken, TokenItem, TokenLogprobs


class TextPiece(NamedTuple):
    """Text that a thread's token ``number`` (from 1) has completed; with log-probabilities requested, that ``token``.
    ``ends``: it ends the answer; ``is_text``: that token is one of text; ``forks``: it closes a promise."""

    text: str
    token: TextToken | None
    thread: int
    number: int
    ends: bool
    is_text: bool
    forks: bool


class Session:
    """The state of one response, from its prompt to its end."""

    def __init__(
        self,
        codec: Codec,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        parallel: bool,
        sampling: SamplingParams | None = None,
        wants_events: bool = False,
    ) -> None:
        self._codec = codec
        self._control = codec.grammar.control
        self._mirror = Interpreter(codec.grammar, limits, prompt_ids, parallel=parallel, strict=False)
        self._threads: dict[Path, int] = {(): 0}
        #: Every token so far with the path of its thread, in order of arrival.
        self.tokens: list[tuple[Path, int]] = []
        self._reading: ReadingOrder[TextPiece] = ReadingOrder()
        self._tokens = TokensInOrder()
        self._streams = {0: TextStream(codec)}
        sampling = sampling or SamplingParams()
        self._stop = StopFilter(sampling.stop)
        self._min_tokens, self._num_read = sampling.min_tokens, 0
        self._may_stop, self._num_in_order = sampling.stops, 0
        self._stop_tokens = frozenset(sampling.stop_token_ids)
        self._events: list[dict[str, Any]] | None = [] if wants_events else None
        #: The response up to what has ended it, if its text has.
        self._cut: Interpreter | None = None
        #: The end of text that the model chose, if log-probabilities are wanted.
        self.end: TextToken | None = None
        #: Whether the last tokens have begun, paused or ended threads.
        self.moved = False

    # -- tokens in -------------------------------------------------------------------------------------

    def feed(self, items: Iterable[TokenItem]) -> Delta:
        """Take a batch of tokens in the order in which they were decoded; returns what may be shown now."""
        self.moved = False
        for path, token, time, *logprobs in items:
            self.tokens.append((path, token))
            self._feed_one(self._threads[path], token, time, *logprobs)
        shown = ""
        for piece in self._reading.take_parts():
            if self._stop.stopped:
                break
            self._tokens.push(piece)
            self._num_read += piece.is_text
            self._num_in_order += 1 + piece.forks  # a chunk's first token is given, and counts too
            shown += self._stop.push(piece.text, may_stop=self._num_read > self._min_tokens)
            if piece.ends:
                shown += self._stop.end()
            if self._stop.stopped:
                self._cut = copy_until(self._mirror, piece.thread, piece.number)
        return self._delta(shown)

    def _feed_one(self, thread: int, token: int, time: float, logprobs: TokenLogprobs | None = None) -> None:
        state = self._mirror.threads[thread]
        in_text = state.mode == Mode.TEXT
        actions = self._mirror.emit(thread, token, time)
        self.moved |= bool(actions) or not state.running
        is_text = in_text and bool(self._codec.grammar.text_mask[token])
        text, entry, stops = "", None, in_text and token in self._stop_tokens
        if is_text and not stops:
            text = self._streams[thread].push(token)
            entry = None if logprobs is None else text_token(self._codec, token, logprobs)
        elif in_text:
            text = self._streams[thread].flush()
        forks = any(isinstance(action, Fork) for action in actions)
        self._reading.text(thread, TextPiece(text, entry, thread, len(state.tokens), stops, is_text, forks))
        if state.mode >= Mode.ENDED:
            self._reading.finish(thread)
            if thread == 0 and logprobs is not None:
                self.end = text_token(self._codec, token, logprobs)
        if self._events is not None:
            event = {
                "type": "token",
                "thread": thread,
                "step": state.steps[-1],
                "time": round(time, 6),
                "text": text,
            }
            self._events.append(event if in_text else {**event, "tag": True})
        for action in actions:
            self._follow(action, time)

    def _follow(self, action: Action, time: float) -> None:
        if isinstance(action, Fork):
            self._reading.fork(action.thread, action.child)
            self._threads[self._mirror.threads[action.child].path] = action.child
            self._streams[action.child] = TextStream(self._codec)
        if self._events is not None and (event := self._event_of(action)) is not None:
            self._events.append({**event, "time": round(time, 6)})

    def _event_of(self, action: Action) -> dict[str, Any] | None:
        if isinstance(action, Fork):
            child = self._mirror.threads[action.child]
            return {
                "type": "fork",
                "thread": action.thread,
                "child": action.child,
                "topic": self._codec.decode_text(child.topic_ids),
                "estimate": child.estimate,
            }
        if isinstance(action, Wait):
            return {"type": "wait", "thread": action.thread}
        if isinstance(action, Join):
            return {"type": "join", "thread": action.thread, "children": list(action.children)}
        if isinstance(action, Finish):
            return {"type": "finish", "thread": action.thread}
        return None

    def _delta(self, text: str) -> Delta:
        events: list[dict[str, Any]] = []
        if self._events is not None:
            events, self._events = self._events, []
        # What is decoded and not read yet does not count once a stop string before it ends the answer.
        so_far = self._num_in_order if self._may_stop and not self.ended else self._completion_tokens
        return Delta(text, events, self._tokens.take(text), completion_tokens=so_far)

    @property
    def _counted(self) -> Interpreter:
        """The interpreter whose tokens count: without what other threads had decoded when a stop string ended the
        answer."""
        return self._cut or self._mirror

    @property
    def _completion_tokens(self) -> int:
        """The tokens so far: tags count, the end of text does not."""
        return self._counted.num_tokens - _has_ended(self._counted)

    # -- what another replica needs to continue --------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether nothing is left to decode: every thread has ended, or the text contains a stop string."""
        return self._mirror.done or self._stop.stopped

    @property
    def finish_reason(self) -> str:
        """The finish reason that follows from the tokens so far."""
        return "stop" if self._stop.stopped else self._mirror.finish_reason

    def snapshot(self, path: Path) -> Snapshot:
        """The tokens, positions and visibility that the Decoder of chunk ``path`` needs."""
        return self._mirror.snapshot(self._threads[path])

    def chunk_ids(self, path: Path) -> list[int]:
        """A finished chunk's tokens in storage order."""
        return self._mirror.response_ids(self._threads[path])

    def running(self) -> list[Path]:
        """The paths of the threads that decode now."""
        return [self._mirror.threads[thread].path for thread in self._mirror.live_threads]

    # -- the end ---------------------------------------------------------------------------------------

    def rest(self) -> Delta:
        """The text that was held back because it could have begun a stop string."""
        return self._delta(self._stop.flush())

    def finish(
        self,
        decoded: Decoded,
        *,
        wants_document: bool,
        trace_of: str | None = None,
        placement_events: Sequence[PlacementEvent] = (),
        marks: Sequence[Mark] = (),
    ) -> Finished:
        """The statistics of the finished response. If a stop string has ended the response, only what is read up to
        there counts.

        ``completion_tokens`` counts tags, but not the end of text. ``sequential_tokens`` is the number of tokens of the
        same text without tags. ``theoretical_speedup`` is sequential_tokens over the critical path (both with the end
        of text). ``speedup`` is the wall-clock ratio sequential_estimate_ms over the time that the answer took (both
        without the queue). ``sequential_estimate_ms`` is the time to the first token, and for each further token one
        step of this Decoder with a single lane, measured while idle. Other requests on the same Decoder slow the answer
        but not the estimate. ``trace_of`` is the request's name in its trace; ``None``: no trace. ``marks`` are its way
        to the Decoder.
        """
        mirror, counted = self._mirror, self._counted
        text = self._codec.grammar.text_tokens
        sequential = sum(1 for thread in counted.threads for _ in text(thread.tokens)) + _has_ended(counted)
        critical_path = counted.critical_path
        estimate_s = decoded.ttft_s - decoded.queue_s + max(0, sequential - 1) * decoded.step_s
        spent_s = decoded.total_s - decoded.queue_s
        timed = decoded.step_s > 0 and spent_s > 0
        pasta: dict[str, Any] = {
            "mode": "parallel" if mirror.parallel else "sequential",
            "threads": len(counted.threads),
            "steps": decoded.steps,
            "critical_path": critical_path,
            "tokens": counted.num_tokens,
            "sequential_tokens": sequential,
            "theoretical_speedup": round(sequential / critical_path, 3) if critical_path else 1.0,
            "speedup": round(estimate_s / spent_s, 3) if timed else None,
            "timings": {
                "queue_ms": round(decoded.queue_s * 1000, 3),
                "ttft_ms": round(decoded.ttft_s * 1000, 3),
                "total_ms": round(decoded.total_s * 1000, 3),
                "sequential_estimate_ms": round(estimate_s * 1000, 3) if timed else None,
                "sync_wait_ms": round(sync_wait_s(mirror.trace(), self._control.sync) * 1000, 3),
            },
        }
        if wants_document:
            # What a stop string has cut is no document, even if all of its threads have ended.
            whole = mirror.done and not self._stop.stopped
            pasta["document"] = to_text(self._codec.decode(mirror.response_ids())) if whole else None
        if trace_of is not None:
            pasta["trace"] = chrome_trace(
                mirror.trace(),
                [self._codec.decode_text(thread.topic_ids) for thread in mirror.threads],
                self._control.sync,
                request=trace_of,
                queue_s=decoded.queue_s,
                ttft_s=decoded.ttft_s,
                placement_events=placement_events,
                marks=way(marks, decoded.submitted_at, decoded.total_s) if marks else (),
            )
        return Finished(
            decoded.finish_reason,
            len(mirror.prompt),
            self._completion_tokens,
            pasta,
            cached_tokens=decoded.cached_tokens,
        )


def _has_ended(interpreter: Interpreter) -> bool:
    return interpreter.threads[0].mode >= Mode.ENDED


def text_token(codec: Codec, token: int, logprobs: TokenLogprobs) -> TextToken:
    """A token and the likeliest others as text."""
    own, top = logprobs
    shown = tuple((codec.decode_text([other]), value) for other, value in top)
    return TextToken(codec.decode_text([token]), own, shown)


class TokensInOrder:
    """Holds tokens in reading order, and releases each with the text in which it begins."""

    def __init__(self) -> None:
        self._written = self._shown = 0
        self._held: deque[TextToken] = deque()

    def push(self, piece: TextPiece) -> None:
        """Append the next piece of the answer."""
        text, token = piece.text, piece.token
        if token is not None:
            # The text may begin with bytes of a character that an earlier token began and none completed.
            lead = len(text) - len(token.token) if text.endswith(token.token) else 0
            self._held.append(replace(token, offset=self._written + lead))
        self._written += len(text)

    def take(self, text: str) -> list[TextToken]:
        """The tokens that begin in ``text``, which is shown now. Tokens that a stop string cuts off are never taken."""
        self._shown += len(text)
        taken = []
        while self._held and self._held[0].offset < self._shown:
            taken.append(self._held.popleft())
        return taken


class StopFilter:
    """Cuts a growing text at the first stop string; holds back an end that may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Append ``text``, in which no stop string ends the text unless it ``may_stop``; returns what can be shown now
        and was not shown before."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        before, self._held = len(self._held), self._held + text
        stops = self._stops if may_stop else ()
        found = [at for stop in stops if (at := self._held.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def end(self) -> str:
        """End the text here; returns what was held back."""
        shown = "" if self.stopped else self.flush()
        self.stopped = True
        return shown

    def flush(self) -> str:
        """Return the text held back: it did not become a stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
