"""One answer in time, in the trace-event format that Perfetto and Chrome open: a track for each thread.

A request asks for it with ``"pasta": {"trace": true}`` and finds it in the answer as ``pasta.trace``: saved to a file
(``jq .pasta.trace``) it opens at ui.perfetto.dev or in chrome://tracing. The answer carries it, rather than an address
like /v1/traces/ID: nothing is stored, so there is nothing to expire, to look for on the right replica, or to protect
from other users; and it names only what the same user may read in the answer.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds since
the request reached its Decoder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.interpreter import ThreadTrace, Trace

Event = dict[str, Any]
_PROCESS = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that placement did with a thread: ``what`` is spill, return or redispatch; seconds since submission."""

    path: tuple[int, ...]
    what: str
    time_s: float
    replica: str = ""


def chrome_trace(
    trace: Trace,
    topics: Sequence[str],
    sync_id: int,
    *,
    request: str,
    queue_s: float,
    ttft_s: float,
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """The trace of a response; ``topics[i]`` names thread i (the main thread needs none), ``sync_id`` is ``<sync/>``.

    Each thread has slices of decoding and of waiting at syncs, the main one also of the queue and of its prefill
    (until the first token). Arrows lead from a fork to its chunk, and from a chunk's end to the sync that joins it.
    """
    rows = {thread.id: number for number, thread in enumerate(_in_reading_order(trace.threads))}
    events: list[Event] = [_named("process_name", 0, f"answer {request}")]
    for thread in trace.threads:
        row = rows[thread.id]
        events += [
            _named("thread_name", row, topics[thread.id] if thread.parent is not None else "main thread"),
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": _PROCESS,
                "tid": row,
                "args": {"sort_index": row},
            },
        ]
    by_id = {thread.id: thread for thread in trace.threads}
    spans: list[Span] = []
    for thread in trace.threads:
        row, found = rows[thread.id], syncs(trace, thread, sync_id)
        if thread.parent is None:
            begun = min([ttft_s, *thread.times[:1]])
            queued = min(queue_s, begun)
            events += [_slice("queue", row, 0.0, queued), _slice("prefill", row, queued, begun)]
        else:
            begun = _forked_at(thread, by_id[thread.parent])
            events += _fork(thread, rows[thread.parent], row, begun)
        spans += (mine := _spans(thread, found, begun))
        events += [_slice("decode", row, s.since, s.until, {"tokens": s.tokens}) for s in mine]
        events += [_slice("sync wait", row, sync.since, sync.until) for sync in _waits(found)]
        events += [event for sync in found for event in _join(trace, sync, row, rows)]
    paths = {thread.path: rows[thread.id] for thread in trace.threads}
    events += [_mark(mark, paths[mark.path]) for mark in marks if mark.path in paths]
    events += _lanes(spans)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"request": request, "critical_path": trace.critical_path, "tokens": trace.num_tokens},
    }


@dataclass(frozen=True, slots=True)
class Sync:
    """A thread at one of its syncs, or behind its last token: it waits until the last of ``joined`` has ended."""

    since: float
    until: float
    joined: tuple[ThreadTrace, ...]


def syncs(trace: Trace, thread: ThreadTrace, sync_id: int) -> list[Sync]:
    """Where a thread joined chunks, in order. What it waited is nothing where all of them had ended before."""
    outstanding = [child for child in trace.threads if child.parent == thread.id]
    found = []
    for token, step, time in zip(thread.token_ids, thread.steps, thread.times, strict=True):
        if token == sync_id:
            joined = tuple(child for child in outstanding if child.forked_at < step)
            outstanding = outstanding[len(joined) :]
            found.append(_sync(trace, time, joined))
    if outstanding and thread.times:
        found.append(_sync(trace, thread.times[-1], tuple(outstanding)))
    return [sync for sync in found if sync.joined]


def sync_wait_s(trace: Trace, sync_id: int) -> float:
    """Seconds that the main thread waited for its chunks."""
    return sum(sync.until - sync.since for sync in syncs(trace, trace.threads[0], sync_id))


def _sync(trace: Trace, since: float, joined: tuple[ThreadTrace, ...]) -> Sync:
    return Sync(since, max([since, *(_end(trace, child) for child in joined)]), joined)


def _end(trace: Trace, chunk: ThreadTrace) -> float:
    """When a chunk and all chunks inside it had ended; 0 if nothing of it was decoded."""
    inside = (t for t in trace.threads if t.path[: len(chunk.path)] == chunk.path and t.times)
    return max((thread.times[-1] for thread in inside), default=0.0)


@dataclass(frozen=True, slots=True)
class Span:
    """A thread decodes: from a wait, or its fork, to the next wait, or its end."""

    since: float
    until: float
    tokens: int


def _spans(thread: ThreadTrace, found: Sequence[Sync], start: float) -> list[Span]:
    """Where a thread decodes between its waits, from ``start`` to its last token."""
    spans, number = [], 0
    end = thread.times[-1] if thread.times else start
    for since, until in [*((sync.since, sync.until) for sync in _waits(found)), (end, end)]:
        tokens = sum(time <= since for time in thread.times[number:])
        number += tokens
        if tokens:
            spans.append(Span(start, max(since, start), tokens))
        start = until
    return spans


def _waits(found: Sequence[Sync]) -> list[Sync]:
    return [sync for sync in found if sync.until > sync.since]


def _fork(thread: ThreadTrace, parent_row: int, row: int, begun: float) -> list[Event]:
    args = {"thread": row, "estimate": thread.estimate, "path": ".".join(map(str, thread.path))}
    arrow = _arrow("fork", f"fork {thread.id}", (parent_row, begun), (row, begun))
    return [*arrow, _instant("fork", parent_row, begun, args)]


def _join(trace: Trace, sync: Sync, row: int, rows: Mapping[int, int]) -> list[Event]:
    events = [_instant("join", row, sync.until, {"threads": [rows[child.id] for child in sync.joined]})]
    for child in sync.joined:
        events += _arrow("join", f"join {child.id}", (rows[child.id], _end(trace, child)), (row, sync.until))
    return events


def _forked_at(thread: ThreadTrace, parent: ThreadTrace) -> float:
    """When its parent closed the promise."""
    return parent.times[parent.steps.index(thread.forked_at)]


def _lanes(spans: Sequence[Span]) -> list[Event]:
    """How many threads decode at any time, wherever they do, as a counter track."""
    changes: Counter[float] = Counter()
    for span in spans:
        changes[_us(span.since)] += 1
        changes[_us(span.until)] -= 1
    events, lanes = [], 0
    for time, change in sorted(changes.items()):
        if change:
            lanes += change
            counter = {"ph": "C", "name": "lanes", "pid": _PROCESS, "ts": time}
            events.append({**counter, "args": {"lanes": lanes}})
    return events


def _in_reading_order(threads: Sequence[ThreadTrace]) -> list[ThreadTrace]:
    return sorted(threads, key=lambda thread: thread.path)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _named(what: str, row: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": row, "args": {"name": name}}


def _slice(name: str, row: int, since: float, until: float, args: Event | None = None) -> Event:
    whole = {"ph": "X", "name": name, "cat": "pasta", "pid": _PROCESS, "tid": row}
    # Of rounded times: slices of a track must not overlap, not even by a rounding.
    return {**whole, "ts": _us(since), "dur": round(max(_us(until) - _us(since), 0.0), 1), "args": args or {}}


def _instant(name: str, row: int, time: float, args: Event) -> Event:
    return {
        "ph": "i",
        "s": "t",
        "name": name,
        "cat": "pasta",
        "pid": _PROCESS,
        "tid": row,
        "ts": _us(time),
        "args": args,
    }


def _mark(mark: Mark, row: int) -> Event:
    return _instant(mark.what, row, mark.time_s, {"replica": mark.replica} if mark.replica else {})


def _arrow(name: str, identity: str, since: tuple[int, float], until: tuple[int, float]) -> list[Event]:
    common = {"name": name, "cat": "pasta", "pid": _PROCESS, "id": identity}
    start = {**common, "ph": "s", "tid": since[0], "ts": _us(since[1])}
    return [start, {**common, "ph": "f", "bp": "e", "tid": until[0], "ts": _us(until[1])}]
