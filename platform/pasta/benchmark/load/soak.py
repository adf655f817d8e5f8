"""The soak test: many requests of all kinds while processes are killed in turn, and clients disconnect or take their
time. No request may be lost or stuck, and no memory leaked.

A decoder's death costs no request. An Interpreter's or a Gateway's cuts the requests that it holds: these may end with
an error that says to send them again, which the soak's clients do.
"""

import asyncio
import contextlib
import itertools
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from pasta.benchmark.load.client import Ask, TimedReply, closed_loop
from pasta.benchmark.load.memory import growing
from pasta.benchmark.load.scenarios import Bench, Memory
from pasta.benchmark.load.service import idle, kill
from pasta.stages.records import Record

#: Share of the clients that go away, of the requests that are no streams, and of those that decode sequentially.
LEAVING, UNSTREAMED, SEQUENTIAL = 0.05, 0.2, 0.3
#: Share of the clients that read their stream, or send their request, at a trickle.
SLOW_READERS, SLOW_UPLOADS = 0.03, 0.03
#: A slow reader waits so long after each bit (about 4 KiB); a slow upload takes so long. The service allows both.
_READ_PAUSE_S, _UPLOAD_S = 0.1, 4.0
#: The kinds of processes that are killed, in turn; and those whose death ends the requests that they hold.
VICTIMS = ("Decoder", "Interpreter", "Gateway")
_HOLDERS = VICTIMS[1:]
#: How long it may take until a request hears of such a death.
_HEARD_WITHIN_S = 30.0
_LENGTHS = (16, 64, 256, None)
_PLACEMENTS = ("local", "spread", "auto")
#: Every third time a process is spared: one that lives longer shows whether its memory grows.
_MEMORY_EVERY_S = 3.0
_IDLE_WITHIN_S = 30.0
#: How long a client waits before it sends a request again, unless it was told.
_AGAIN_S = 1.0
_SAY_EVERY_S = 10.0


def soak_requests(bench: Bench) -> list[Ask]:
    """Make the requests, which depend on the seed alone."""
    settings = bench.settings
    rng = random.Random(f"soak:{settings.soak_seed}")
    asks = []
    for _ in range(settings.soak):
        way = bench.ways["sequential" if rng.random() < SEQUENTIAL else "parallel"]
        pasta = {**way.pasta, "placement": rng.choice(_PLACEMENTS)}
        stream, leaves = rng.random() >= UNSTREAMED, rng.random() < LEAVING
        slow = rng.random()
        reads_slowly, uploads_slowly = slow < SLOW_READERS, SLOW_READERS <= slow < SLOW_READERS + SLOW_UPLOADS
        asks.append(
            Ask(
                rng.choice(bench.prompts),
                way.model,
                pasta,
                rng.choice(_LENGTHS) or settings.max_tokens,
                stream or leaves or reads_slowly,
                leave_after=rng.randint(1, 12) if leaves else None,
                read_pause_s=_READ_PAUSE_S if reads_slowly else 0.0,
                upload_s=_UPLOAD_S if uploads_slowly else 0.0,
            )
        )
    return asks


async def soak(bench: Bench, key: str) -> Record:
    """Run the soak test; returns its record.

    Ctrl-C or SIGTERM ends it early: no more requests are sent, the open ones end, and the record says ``ended:
    interrupted``. A second one does not wait.
    """
    asks, settings = soak_requests(bench), bench.settings
    until = perf_counter() + (settings.soak_s or float("inf"))
    interrupted = asyncio.Event()
    samples: dict[str, list[float]] = {}
    kills: list[tuple[float, str]] = []
    counts: Counter[str] = Counter()
    begun = perf_counter()

    async def patient(ask: Ask) -> TimedReply:
        """Send a request. Send it again after Retry-After if it was refused, or if a killed process ended it."""
        give_up = perf_counter() + settings.timeout_s
        while True:
            sent_s = perf_counter() - begun
            answer = await bench.service.send(ask)
            ending = "cut" if was_cut(answer, sent_s, kills) else answer.ending
            counts[ending] += 1
            if ending not in ("refused", "cut") or perf_counter() > give_up:
                return answer
            await asyncio.sleep(answer.retry_after_s or _AGAIN_S)

    def sent() -> Iterator[Ask]:
        """The requests in order, until the time is up."""
        for ask in asks:
            if perf_counter() > until or interrupted.is_set():
                return
            counts["sent"] += 1
            yield ask

    async def teller() -> None:
        """Print progress at intervals."""
        while True:
            await asyncio.sleep(_SAY_EVERY_S)
            bench.say(progress(counts, len(asks), perf_counter() - begun, len(kills), settings.soak_s))

    async def killer() -> None:
        """Kill a decoder, an Interpreter, a Gateway, and so on; none while the service is not ready, and never the only
        decoder left."""
        rng = random.Random(f"kills:{settings.soak_seed}")
        for kind in itertools.cycle(VICTIMS if bench.replicas else VICTIMS[:1]):
            await asyncio.sleep(settings.kill_every_s)
            found = [int(decoder["pid"]) for decoder in await bench.service.decoders()]
            if len(found) < (2 if kind == "Decoder" else 1):
                counts["spared"] += 1
                continue
            if bench.replicas and kind != "Decoder":
                found = [*bench.replicas(kind)]
            # Noted first: a request may hear of the death before this coroutine goes on.
            kills.append((perf_counter() - begun, kind))
            with contextlib.suppress(ProcessLookupError):
                kill(rng.choice(found))

    async def sampler(read: Memory) -> None:
        while True:
            for name, mib in read().items():
                samples.setdefault(name, []).append(round(mib, 1))
            await asyncio.sleep(_MEMORY_EVERY_S)

    beside = [asyncio.create_task(teller())]
    beside += [asyncio.create_task(killer())] if settings.kill_every_s else []
    beside += [asyncio.create_task(sampler(bench.memory))] if bench.memory else []
    try:
        with _first_signal(interrupted):
            answers, seconds = await closed_loop(sent(), settings.soak_clients, patient)
    finally:
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, Exception):  # not the CancelledError that was asked for
            raise failure
    idle_s = await bench.service.until(idle, _IDLE_WITHIN_S)
    wrong = [
        {"number": number, "pasta": dict(ask.pasta), "max_tokens": ask.max_tokens, **answer.record()}
        for number, (ask, answer) in enumerate(zip(asks, answers, strict=False))
        if answer.ending in ("lost", "stuck", "refused")
    ]
    whole = [answer for answer in answers if answer.ending == "whole"]
    ended_by = "interrupted" if interrupted.is_set() else "time" if len(answers) < len(asks) else "all sent"
    del counts["sent"]
    return {
        "requests": len(answers),
        "ended": ended_by,
        "seconds": seconds,
        "endings": dict(counts),
        "kills": kills,
        "idle_s": idle_s,
        "wrong": wrong,
        "differing": differing(asks, answers),
        "redispatches": sum(answer.pasta.get("redispatches", 0) for answer in whole),
        "spills": sum(answer.pasta.get("spills", 0) for answer in whole),
        "total_s": [
            round(answer.total_s, 4)
            for ask, answer in zip(asks, answers, strict=False)
            if answer.ending == "whole" and not ask.slow
        ],
        "memory_mib": samples,
    }


def progress(
    counts: Mapping[str, int], total: int, seconds: float, kills: int, budget_s: float | None
) -> str:
    """A line that tells how far the soak is, and what it has found so far."""
    done = sum(counts.get(ending, 0) for ending in ("whole", "left", "lost", "stuck"))
    rate = done / seconds
    left_s = (total - done) / rate if done else float("inf")
    if budget_s is not None:
        left_s = min(left_s, max(0.0, budget_s - seconds))
    eta = "not known" if left_s == float("inf") else f"{left_s / 60:.1f} min"
    return (
        f"soak: {done}/{total} requests in {seconds:.0f} s, {rate:.1f} a second, eta {eta}; {kills} kills, "
        f"{counts.get('lost', 0)} lost, {counts.get('stuck', 0)} stuck, {counts.get('refused', 0)} refusals, "
        f"{counts.get('cut', 0)} cut"
    )


def was_cut(answer: TimedReply, sent_s: float, kills: Sequence[tuple[float, str]]) -> bool:
    """Whether a request was open when an Interpreter or a Gateway was killed, and ended as is allowed then: with an
    error that says it may be sent again, or with a broken connection."""
    ended_s = sent_s + answer.total_s
    open_then = any(kind in _HOLDERS and sent_s < at and ended_s < at + _HEARD_WITHIN_S for at, kind in kills)
    return answer.ending == "lost" and answer.retryable and open_then


@contextlib.contextmanager
def _first_signal(seen: asyncio.Event) -> Iterator[None]:
    """Set ``seen`` at the first Ctrl-C or SIGTERM within the block; the next one does what it does elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def once(_: int, __: Any) -> None:
        restore()
        loop.call_soon_threadsafe(seen.set)

    for number in before:
        signal.signal(number, once)
    try:
        yield
    finally:
        restore()


def differing(asks: Sequence[Ask], answers: Sequence[TimedReply]) -> int:
    """Count greedy answers that differ from the first one with the same prompt, model, mode and length."""
    first: dict[str, str] = {}
    count = 0
    for ask, answer in zip(asks, answers, strict=False):  # a soak may end early
        if answer.ending == "whole":
            same = repr((ask.messages, ask.model, ask.pasta.get("mode"), ask.max_tokens))
            count += first.setdefault(same, answer.text) != answer.text
    return count


def violations(records: Sequence[Record]) -> list[str]:
    """The violations that the soak's only record shows, one line each; empty if there are none."""
    (record,), found = records, []
    for ending, what in (("lost", "lost"), ("stuck", "stuck"), ("refused", "never admitted")):
        wrong = [each for each in record["wrong"] if each["ending"] == ending]
        if wrong:
            found.append(f"{len(wrong)} requests {what}, the first: {wrong[0].get('error', '')}")
    if record["idle_s"] is None:
        found.append(f"decoders still busy {_IDLE_WITHIN_S:g} s after the last answer")
    return found + growing(record["memory_mib"])
