"""One request as its Interpreter sees it: tokens in, text in reading order, events and figures out. No I/O.

The session drives an interpreter object of its own with the tokens that a Decoder reports, so that it knows
every thread's state: what was said, what follows from it, and what a lost chunk would need to go on.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

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
)
from pasta.lang import Codec, TextStream, to_text
from serve.observe.trace import Mark, chrome_trace, sync_wait_s
from serve.wire import Decoded, Finished, Path, Progress, TextToken, TokenItem, TokenLogprobs

#: Some text, and the token that it ends with if log-probabilities were asked for.
Piece = tuple[str, TextToken | None]


class Session:
    """Follows one response from its prompt to its end."""

    def __init__(
        self,
        codec: Codec,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        parallel: bool,
        stop: Sequence[str] = (),
        wants_events: bool = False,
    ) -> None:
        self._codec = codec
        self._control = codec.grammar.control
        self._mirror = Interpreter(codec.grammar, limits, prompt_ids, parallel=parallel, strict=False)
        self._threads: dict[Path, int] = {(): 0}
        #: Every token so far with its thread's name, in the order in which they came.
        self.tokens: list[tuple[Path, int]] = []
        self._reading: ReadingOrder[Piece] = ReadingOrder()
        self._tokens = TokenLine()
        self._streams = {0: TextStream(codec)}
        self._stop = StopFilter(stop)
        self._events: list[dict[str, Any]] | None = [] if wants_events else None
        self._text_tokens = 0

    # -- tokens in -------------------------------------------------------------------------------------

    def feed(self, items: Iterable[TokenItem]) -> Progress:
        """Take a batch of tokens in the order in which they were decoded; returns what may be shown."""
        for path, token, time, *logprobs in items:
            self.tokens.append((path, token))
            self._feed_one(self._threads[path], token, time, *logprobs)
        pieces = self._reading.take_parts()
        self._tokens.push(pieces)
        return self._progress(self._stop.push("".join(text for text, _ in pieces)))

    def _feed_one(self, thread: int, token: int, time: float, logprobs: TokenLogprobs | None = None) -> None:
        state = self._mirror.threads[thread]
        in_text = state.mode == Mode.TEXT
        actions = self._mirror.emit(thread, token, time)
        text, entry = "", None
        if in_text and self._codec.grammar.text_mask[token]:
            self._text_tokens += 1
            text = self._streams[thread].push(token)
            entry = None if logprobs is None else self._text_token(token, logprobs)
        elif in_text:
            text = self._streams[thread].flush()
        if text or entry:
            self._reading.text(thread, (text, entry))
        if state.mode >= Mode.ENDED:
            self._reading.finish(thread)
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

    def _text_token(self, token: int, logprobs: TokenLogprobs) -> TextToken:
        own, top = logprobs
        shown = tuple((self._codec.decode_text([other]), value) for other, value in top)
        return TextToken(self._codec.decode_text([token]), own, shown)

    def _progress(self, text: str) -> Progress:
        events: list[dict[str, Any]] = []
        if self._events is not None:
            events, self._events = self._events, []
        return Progress(text, events, self._tokens.take(text))

    # -- what decoding it elsewhere needs --------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether nothing is left to decode: every thread has ended, or a stop string has come."""
        return self._mirror.done or self._stop.stopped

    @property
    def finish_reason(self) -> str:
        """How the response ended, as far as its tokens say."""
        return "stop" if self._stop.stopped else self._mirror.finish_reason

    def snapshot(self, path: Path) -> Snapshot:
        """What the decoder of a chunk must see."""
        return self._mirror.snapshot(self._threads[path])

    def chunk_ids(self, path: Path) -> list[int]:
        """A finished chunk's tokens in storage order."""
        return self._mirror.response_ids(self._threads[path])

    def running(self) -> list[Path]:
        """The threads that decode now."""
        return [self._mirror.threads[thread].path for thread in self._mirror.live_threads]

    # -- the end ---------------------------------------------------------------------------------------

    def rest(self) -> Progress:
        """What was held back in case a stop string would come."""
        return self._progress(self._stop.flush())

    def finish(
        self,
        decoded: Decoded,
        *,
        wants_document: bool,
        trace_of: str | None = None,
        marks: Sequence[Mark] = (),
    ) -> Finished:
        """Counts and figures of the finished response.

        ``completion_tokens`` counts tags too, but not the end of text. ``sequential_tokens`` is what the same
        text takes without tags, and ``theoretical_speedup`` that over the critical path (both with the end of
        text): estimates of what the answer saves over decoding it one token after another. ``speedup`` is the
        same by the clock: ``sequential_estimate_ms``, the time to the first token and a step with a single lane,
        as this Decoder takes it when idle, for each further one, over the time the answer took (both without
        the queue). Other requests on the same Decoder slow the answer but not the estimate.
        ``trace_of`` is the request's name in its trace, ``None`` for no trace.
        """
        mirror = self._mirror
        ended = int(mirror.threads[0].mode >= Mode.ENDED)
        sequential = self._text_tokens + ended
        critical_path = mirror.critical_path
        estimate_s = decoded.ttft_s - decoded.queue_s + max(0, sequential - 1) * decoded.step_s
        spent_s = decoded.total_s - decoded.queue_s
        timed = decoded.step_s > 0 and spent_s > 0
        pasta: dict[str, Any] = {
            "mode": "parallel" if mirror.parallel else "sequential",
            "threads": len(mirror.threads),
            "steps": decoded.steps,
            "critical_path": critical_path,
            "tokens": mirror.num_tokens,
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
            # A stop string leaves threads unfinished: there is no document then.
            pasta["document"] = to_text(self._codec.decode(mirror.response_ids())) if mirror.done else None
        if trace_of is not None:
            pasta["trace"] = chrome_trace(
                mirror.trace(),
                [self._codec.decode_text(thread.topic_ids) for thread in mirror.threads],
                self._control.sync,
                request=trace_of,
                queue_s=decoded.queue_s,
                ttft_s=decoded.ttft_s,
                marks=marks,
            )
        return Finished(decoded.finish_reason, len(mirror.prompt), mirror.num_tokens - ended, pasta)


class TokenLine:
    """Tokens in reading order, each given out with the text that it begins in."""

    def __init__(self) -> None:
        self._written = self._shown = 0
        self._held: deque[TextToken] = deque()

    def push(self, pieces: Iterable[Piece]) -> None:
        """The next pieces of the answer."""
        for text, token in pieces:
            if token is not None:
                # Before it there may be bytes of a character that was awaited and never became one.
                lead = len(text) - len(token.token) if text.endswith(token.token) else 0
                self._held.append(replace(token, offset=self._written + lead))
            self._written += len(text)

    def take(self, text: str) -> list[TextToken]:
        """``text`` is shown now: the tokens that begin in it. What a stop string cuts off is never asked for."""
        self._shown += len(text)
        taken = []
        while self._held and self._held[0].offset < self._shown:
            taken.append(self._held.popleft())
        return taken


class StopFilter:
    """Cuts a growing text at the first stop string; holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of everything so far that is safe to show now and was not shown before."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
