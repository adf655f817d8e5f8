"""Writes one answer's timeline in the trace-event format of Perfetto and Chrome, with a track for each thread.

A request asks for it with ``"pasta": {"trace": true}``; the answer carries it as ``pasta.trace``. Saved to a file
(``jq .pasta.trace``) it opens at ui.perfetto.dev or in chrome://tracing. The answer carries the trace itself, not
an address such as /v1/traces/ID: so the service stores none, need not expire them, find them on the right replica or
protect them from other users. A trace contains only what the same user may read in the answer.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds since
the Gateway had the request's head.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time as now
from typing import Any

from pasta.interpreter import ThreadTrace, Trace
from serve.wire import Mark

TraceEvent = dict[str, Any]
#: Tracks of threads, and that of the request's way through the service.
_PROCESS, _SERVICE = 1, 2
#: The stages of a request that begin when its Decoder has it, and when its answer ends.
DECODING, END = "decoding", "end"


@dataclass(frozen=True, slots=True)
class PlacementEvent:
    """A placement event of a thread: ``what`` is spill, return or redispatch; seconds since submission."""

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
    placement_events: Sequence[PlacementEvent] = (),
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Write the trace of a response. ``topics[i]`` names thread i (not the main one); ``sync_id`` is the id of
    ``<sync/>``. ``marks`` are the request's ``way``, its parts are slices of a track of its own; without it, times
    begin at the Decoder.

    Each thread has slices of decoding and of waiting at syncs, the main one also of the queue and of its prefill
    (until the first token). Arrows lead from a fork to its chunk, and from a chunk's end to the sync that joins it.
    """
    in_reading_order = sorted(trace.threads, key=lambda thread: thread.path)
    rows = {thread.id: number for number, thread in enumerate(in_reading_order)}
    events: list[TraceEvent] = [_named("process_name", 0, f"answer {request}")]
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
    events += [_placed(event, paths[event.path]) for event in placement_events if event.path in paths]
    events += _lanes(spans)
    other = {"request": request, "critical_path": trace.critical_path, "tokens": trace.num_tokens}
    if marks:
        begun = dict(marks)[DECODING] - marks[0][1]
        events = [
            {**event, "ts": round(event["ts"] + _us(begun), 1)} if "ts" in event else event
            for event in events
        ]
        events += _service(marks, len(rows))
        other["marks"] = [[stage, round(at, 6)] for stage, at in marks]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def way(before: Sequence[Mark], submitted_at: float, total_s: float) -> list[Mark]:
    """A request's way through the service: a mark for the beginning of each stage.

    The marks ``before`` its Decoder had it come first; then its decoding, the answer's way back to the Interpreter, and
    its end, which is now. Nodes' clocks may differ: a stage that would begin before the previous one begins with it.
    """
    marks = [
        *before,
        (DECODING, submitted_at),
        ("from the Decoder", submitted_at + total_s),
        (END, now()),
    ]
    times = itertools.accumulate((at for _, at in marks), max)
    return [(stage, at) for (stage, _), at in zip(marks, times, strict=True)]


def _service(marks: Sequence[Mark], row: int) -> list[TraceEvent]:
    origin, events = marks[0][1], [{**_named("process_name", row, "service"), "pid": _SERVICE}]
    for (stage, since), (_, until) in itertools.pairwise(marks):
        events.append({**_slice(stage, row, since - origin, until - origin), "pid": _SERVICE})
    return events


@dataclass(frozen=True, slots=True)
class SyncWait:
    """The wait of a thread at a sync, or after its last token, until the last of ``joined`` has ended."""

    since: float
    until: float
    joined: tuple[ThreadTrace, ...]


def syncs(trace: Trace, thread: ThreadTrace, sync_id: int) -> list[SyncWait]:
    """The places where a thread joined chunks, in order; a wait is empty where all of them had ended before."""
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
    """Seconds that the main thread waited for its chunks at syncs and at the end."""
    return sum(sync.until - sync.since for sync in syncs(trace, trace.threads[0], sync_id))


def _sync(trace: Trace, since: float, joined: tuple[ThreadTrace, ...]) -> SyncWait:
    return SyncWait(since, max([since, *(_end(trace, child) for child in joined)]), joined)


def _end(trace: Trace, chunk: ThreadTrace) -> float:
    """When a chunk and all chunks inside it had ended; 0 if none of its tokens were decoded."""
    inside = (t for t in trace.threads if t.path[: len(chunk.path)] == chunk.path and t.times)
    return max((thread.times[-1] for thread in inside), default=0.0)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch in which a thread decodes: from its fork or a wait to the next wait or its end."""

    since: float
    until: float
    tokens: int


def _spans(thread: ThreadTrace, found: Sequence[SyncWait], start: float) -> list[Span]:
    """The stretches in which a thread decodes, from ``start`` to its last token."""
    spans, number = [], 0
    end = thread.times[-1] if thread.times else start
    for since, until in [*((sync.since, sync.until) for sync in _waits(found)), (end, end)]:
        tokens = sum(time <= since for time in thread.times[number:])
        number += tokens
        if tokens:
            spans.append(Span(start, max(since, start), tokens))
        start = until
    return spans


def _waits(found: Sequence[SyncWait]) -> list[SyncWait]:
    return [sync for sync in found if sync.until > sync.since]


def _fork(thread: ThreadTrace, parent_row: int, row: int, begun: float) -> list[TraceEvent]:
    args = {"thread": row, "estimate": thread.estimate, "path": ".".join(map(str, thread.path))}
    arrow = _arrow("fork", f"fork {thread.id}", (parent_row, begun), (row, begun))
    return [*arrow, _instant("fork", parent_row, begun, args)]


def _join(trace: Trace, sync: SyncWait, row: int, rows: Mapping[int, int]) -> list[TraceEvent]:
    events = [_instant("join", row, sync.until, {"threads": [rows[child.id] for child in sync.joined]})]
    for child in sync.joined:
        events += _arrow("join", f"join {child.id}", (rows[child.id], _end(trace, child)), (row, sync.until))
    return events


def _forked_at(thread: ThreadTrace, parent: ThreadTrace) -> float:
    """When its parent closed the promise that forked it."""
    return parent.times[parent.steps.index(thread.forked_at)]


def _lanes(spans: Sequence[Span]) -> list[TraceEvent]:
    """The number of threads that decode at a time, on any replica, as a counter track."""
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


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _named(what: str, row: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": row, "args": {"name": name}}


def _slice(name: str, row: int, since: float, until: float, args: TraceEvent | None = None) -> TraceEvent:
    whole = {"ph": "X", "name": name, "cat": "pasta", "pid": _PROCESS, "tid": row}
    # Both ends rounded first: slices of a track must not overlap, not even by a rounding error.
    return {**whole, "ts": _us(since), "dur": round(max(_us(until) - _us(since), 0.0), 1), "args": args or {}}


def _instant(name: str, row: int, time: float, args: TraceEvent) -> TraceEvent:
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


def _placed(event: PlacementEvent, row: int) -> TraceEvent:
    return _instant(event.what, row, event.time_s, {"replica": event.replica} if event.replica else {})


def _arrow(name: str, identity: str, since: tuple[int, float], until: tuple[int, float]) -> list[TraceEvent]:
    common = {"name": name, "cat": "pasta", "pid": _PROCESS, "id": identity}
    start = {**common, "ph": "s", "tid": since[0], "ts": _us(since[1])}
    return [start, {**common, "ph": "f", "bp": "e", "tid": until[0], "ts": _us(until[1])}]
