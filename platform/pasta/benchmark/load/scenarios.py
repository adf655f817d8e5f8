"""Measures one record of each scenario: latency, throughput, speedup, spread, kill, disconnect, refuse.

Both sides of a ratio are measured in turn, so that a machine that slows down slows both. Before anything is timed, a
request that is measured alone is sent once to warm up, and of a block of many a quarter.
"""

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from pasta.benchmark.load.client import Ask, TimedReply
from pasta.benchmark.load.service import Service, busy, kill
from pasta.benchmark.load.settings import LoadSettings
from pasta.benchmark.load.ways import Name, Way
from pasta.data.linearise import Messages
from pasta.errors import UserError
from pasta.stages.records import Record

if TYPE_CHECKING:
    from pasta.benchmark.load.bare import Bare

#: Requests under way when a decoder is killed, and when in their time that is.
KILL_CLIENTS, KILL_AT = 4, 0.4
#: Pieces of text after which a client goes away: threads are forked by then.
LEAVE_AFTER = 4
REFUSE_CLIENTS = 8
#: How often a prompt is timed each way on each side for the speedup.
REPEATS = 3
#: Mean pause before a client asks again. It is shorter than Retry-After, since the service must be busy; but not so
#: short that refusals alone take the processor (two cores write about a hundred a second).
_PAUSE_S = 0.25
#: Seconds after which a decoder that is not back, or a request with running threads, counts as an error.
_BACK_S, _STOPPED_S = 300.0, 20.0
T = TypeVar("T")
#: MiB of each of the service's processes, by what it is.
Memory = Callable[[], Mapping[str, float]]


@dataclass
class Bench:
    """The tools of every scenario: the service, the ways, the prompts, and the bare engine (loaded on first use).

    ``prompts`` are as many as the scenario with the most needs; ``independent`` are those whose answers have parallel
    parts. ``memory`` samples the memory of the service's processes; without it memory is not reported. ``say`` prints a
    line of progress. ``max_body_bytes`` is the largest body that the service takes. ``replicas`` finds the processes of
    a kind, Interpreter or Gateway; without it only decoders are killed. ``paused`` is a context without the service.
    """

    settings: LoadSettings
    service: Service
    ways: dict[Name, Way]
    prompts: Sequence[Messages]
    independent: Sequence[Messages]
    load_bare: Callable[[], "Bare"]
    memory: Memory | None = None
    say: Callable[[str], None] = lambda _: None
    max_body_bytes: int = 1_000_000
    replicas: Callable[[str], Sequence[int]] | None = None
    paused: Callable[[], AbstractContextManager[None]] = nullcontext

    @cached_property
    def bare(self) -> "Bare":
        """The engine by itself."""
        return self.load_bare()

    def asks(self, way: Name, prompts: Sequence[Messages], **pasta: Any) -> list[Ask]:
        """The requests for some prompts."""
        found = self.ways[way]
        body = {**found.pasta, **pasta}
        return [Ask(prompt, found.model, body, self.settings.max_tokens) for prompt in prompts]

    async def whole(self, asks: Sequence[Ask], clients: int) -> tuple[list[TimedReply], float]:
        """Have the service answer the requests; returns answers and seconds. Raises ``UserError`` if one is not
        whole."""
        answers, seconds = await self.service.run(asks, clients)
        check_whole(answers)
        return answers, seconds

    async def warm_up(self, clients: int) -> None:
        """Have the service answer both ways, from so many clients at once."""
        for way in self.ways:
            prompts = [self.prompts[n % len(self.prompts)] for n in range(clients)]
            await self.whole(self.asks(way, prompts), clients)


def check_whole(answers: Sequence[TimedReply]) -> None:
    """Raise ``UserError`` if an answer is not whole."""
    for answer in answers:
        if answer.ending != "whole":
            raise UserError(f"the service did not answer ({answer.ending}, {answer.status}): {answer.error}")


# -- latency ---------------------------------------------------------------------------------------------


def latency_keys(settings: LoadSettings) -> list[str]:
    """Round, clients and way of each block."""
    return [
        f"{number} {clients} {way}"
        for number in range(settings.rounds)
        for clients in settings.clients
        for way in ("sequential", "parallel")
    ]


def block_of(key: str) -> tuple[int, Name]:
    """The clients and the way of a block's key."""
    _, clients, way = key.split()
    return int(clients), "parallel" if way == "parallel" else "sequential"


async def latency(bench: Bench, key: str) -> Record:
    """Every prompt by so many clients."""
    clients, way = block_of(key)
    return await timed(bench, bench.asks(way, bench.prompts[: bench.settings.prompts]), clients)


async def timed(bench: Bench, asks: Sequence[Ask], clients: int) -> Record:
    """Send a block of requests after some to warm up; returns its seconds and the answers."""
    await bench.whole(_part(asks, clients), clients)
    answers, seconds = await bench.whole(asks, clients)
    return {"seconds": seconds, "answers": [answer.record() for answer in answers]}


# -- against the bare engine -----------------------------------------------------------------------------


def throughput_keys(settings: LoadSettings) -> list[str]:
    """Round, clients and way of each pair of blocks: of many clients, if there are blocks of many."""
    many = tuple(clients for clients in settings.clients if clients > 1) or settings.clients
    return latency_keys(replace(settings, clients=many))


async def throughput(bench: Bench, key: str) -> Record:
    """Tokens and seconds of the service and of the bare engine: as many requests at once, the same prompts."""
    clients, way = block_of(key)
    prompts = bench.prompts[: bench.settings.prompts]
    asks, record = bench.asks(way, prompts), {}
    await bench.whole(_part(asks, clients), clients)
    bench.bare.throughput(bench.ways[way], _part(prompts, clients), clients)
    answers, seconds = await bench.whole(asks, clients)
    record["service"] = [sum(answer.tokens for answer in answers), seconds]
    record["bare"] = [*bench.bare.throughput(bench.ways[way], prompts, clients)]
    return record


async def speedup(bench: Bench, key: str) -> Record:
    """Seconds of a prompt, alone, both ways: over HTTP and by the bare engine, in turn; medians of ``REPEATS``.

    In turn, since the machine's speed drifts; medians, since others on it can double a single time.
    """
    prompt = bench.independent[int(key)]
    over_http: dict[Name, list[TimedReply]] = {way: [] for way in bench.ways}
    bare: dict[Name, list[float]] = {way: [] for way in bench.ways}
    for _ in range(1 + REPEATS):  # the first of each warms it up
        for way in bench.ways:
            answers, _ = await bench.whole(bench.asks(way, [prompt]), 1)
            over_http[way] += answers
            bare[way].append(bench.bare.seconds(bench.ways[way], prompt))
    return {
        "http": {
            way: statistics.median(answer.total_s for answer in over_http[way][1:]) for way in bench.ways
        },
        "bare": {way: statistics.median(bare[way][1:]) for way in bench.ways},
        "threads": over_http["parallel"][-1].pasta.get("threads"),
    }


# -- several decoders ------------------------------------------------------------------------------------


async def spread(bench: Bench, key: str) -> Record:
    """A prompt, alone, with all threads at home and with its chunks over all decoders."""
    prompt = bench.independent[int(key)]
    return {
        placement: (await second(bench, bench.asks("parallel", [prompt], placement=placement)[0])).record()
        for placement in ("local", "spread", "auto")
    }


async def killed(bench: Bench, key: str) -> Record:
    """Send the same requests at once: twice undisturbed (the second time counts) and once with a decoder killed.

    The busiest decoder is killed when the requests have run for ``KILL_AT`` of their undisturbed time.
    """
    first = int(key) * KILL_CLIENTS
    prompts = [bench.independent[(first + n) % len(bench.independent)] for n in range(KILL_CLIENTS)]
    asks = bench.asks("parallel", prompts, placement="spread")
    await bench.whole(asks, KILL_CLIENTS)
    undisturbed, _ = await bench.whole(asks, KILL_CLIENTS)
    num_decoders = len(await bench.service.decoders())
    wait_s = KILL_AT * statistics.median(answer.total_s for answer in undisturbed)
    running = asyncio.create_task(bench.service.run(asks, KILL_CLIENTS))
    await asyncio.sleep(wait_s)
    decoders = await bench.service.decoders()
    if len(decoders) < 2:
        raise UserError("kill: the service has no second decoder; expected decoder.num_replicas of 2 or more")
    victim = max(decoders, key=lambda decoder: decoder["lanes"])
    pid, at = int(victim["pid"]), perf_counter()
    kill(pid)
    disturbed, _ = await running

    def back(decoders: list[dict[str, Any]]) -> bool:
        return len(decoders) == num_decoders and pid not in {decoder["pid"] for decoder in decoders}

    if await bench.service.until(back, _BACK_S) is None:
        raise UserError(f"kill: no other decoder took its place within {_BACK_S:g} s")
    return {
        "undisturbed": [answer.record() for answer in undisturbed],
        "disturbed": [answer.record() for answer in disturbed],
        "lanes": victim["lanes"],
        "back_s": perf_counter() - at,
    }


# -- clients that leave, requests that are refused -------------------------------------------------------


async def disconnect(bench: Bench, key: str) -> Record:
    """A client goes away in the middle of an answer spread over all decoders: seconds until none has anything to do.

    ``busy_s`` is when they were last seen busy, ``idle_s`` when first seen idle: the truth lies between. Both count
    from the moment when the client began to close its connection. The answer is as long as answers may be; ``ended`` if
    it was there before.
    """
    num_decoders = len(await bench.service.decoders())
    pasta = {"placement": "spread"} if num_decoders > 1 else {}
    (ask,) = bench.asks("parallel", [bench.independent[int(key)]], **pasta)
    answer = await bench.service.send(replace(ask, leave_after=LEAVE_AFTER, more={"ignore_eos": True}))
    if answer.ending == "whole":
        return {"ended": True}
    if answer.ending != "left":
        raise UserError(f"the service did not answer ({answer.ending}, {answer.status}): {answer.error}")
    busy_s = 0.0
    while True:
        asked = perf_counter() - answer.left_at
        decoders = await bench.service.decoders()
        now = perf_counter() - answer.left_at
        if decoders and not busy(decoders):
            return {"busy_s": busy_s, "idle_s": now}
        busy_s = asked
        if now > _STOPPED_S:
            raise UserError(f"disconnect: decoders are still busy {_STOPPED_S:g} s after the client left")


async def refuse(bench: Bench, key: str) -> Record:
    """More clients than the budget has room for: seconds until each refusal was there, and what the others got."""
    refused: list[TimedReply] = []
    admitted: list[TimedReply] = []
    prompts = bench.independent
    give_up = perf_counter() + bench.settings.timeout_s

    async def client(number: int) -> None:
        pauses = random.Random(number)
        asks = bench.asks("parallel", [prompts[number % len(prompts)]])
        while len(refused) < bench.settings.refusals and perf_counter() < give_up:
            await asyncio.sleep(pauses.uniform(0, 2 * _PAUSE_S))
            answer = await bench.service.send(asks[0])
            (refused if answer.ending == "refused" else admitted).append(answer)

    async with asyncio.TaskGroup() as group:
        for number in range(REFUSE_CLIENTS):
            group.create_task(client(number))
    if len(refused) < bench.settings.refusals:
        raise UserError(
            f"refuse: {len(refused)} of {bench.settings.refusals} requests were refused within "
            f"{bench.settings.timeout_s:g} s; expected an admission budget that holds one answer"
        )
    return {
        "refused_s": [answer.total_s for answer in refused],
        "without_retry_after": sum(answer.retry_after_s is None for answer in refused),
        "admitted": [answer.record() for answer in admitted],
    }


def _part(each: Sequence[T], clients: int) -> Sequence[T]:
    """The requests that warm a block of many up: a quarter of the block, and at least one for each client."""
    return each[: max(clients, -(-len(each) // 4))]


async def second(bench: Bench, ask: Ask) -> TimedReply:
    """The second of two answers to a request."""
    await bench.whole([ask], 1)
    answers, _ = await bench.whole([ask], 1)
    return answers[0]
