"""The service that is measured: sends it requests, and reads the state of its decoders."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any

import httpx

from pasta.benchmark.load.client import Ask, LoadClient, TimedReply, closed_loop, send
from pasta.benchmark.load.ways import Way
from pasta.errors import UserError

Decoders = list[dict[str, Any]]
#: Of each model: the name of its number format, and why.
Formats = dict[str, dict[str, str]]


class Service:
    """Sends requests to the service that ``client`` is connected to; ``http`` is for what is not timed."""

    def __init__(self, client: LoadClient, timeout_s: float = 600.0) -> None:
        self._client, self._timeout_s = client, timeout_s
        self.http = client.http

    async def send(self, ask: Ask) -> TimedReply:
        """Send one request."""
        return await send(self._client, ask, self._timeout_s)

    async def run(self, asks: Sequence[Ask], clients: int) -> tuple[list[TimedReply], float]:
        """Send all requests from ``clients`` clients; returns the replies in order, and seconds."""
        return await closed_loop(asks, clients, self.send)

    async def hold(
        self, conversations: Sequence[Sequence[Ask]], clients: int, think_s: float
    ) -> tuple[list[TimedReply], float]:
        """Hold conversations from ``clients`` clients: every request goes on from those before it and their answers,
        ``think_s`` seconds after the last of these. Returns the replies, conversation by conversation, and seconds."""

        async def hold(asks: Sequence[Ask]) -> list[TimedReply]:
            said: list[Mapping[str, str]] = []
            replies = []
            for ask in asks:
                await asyncio.sleep(think_s if said else 0)
                said += ask.messages
                replies.append(await self.send(replace(ask, messages=[*said])))
                said.append({"role": "assistant", "content": replies[-1].text})
            return replies

        held, seconds = await closed_loop(conversations, clients, hold)
        return [*chain.from_iterable(held)], seconds

    async def decoders(self) -> Decoders:
        """Read the state of each decoder (GET /ready); empty while the service does not answer."""
        try:
            response = await self.http.get("/ready", timeout=10.0)
        except httpx.HTTPError:
            return []
        return list(response.json()["decoders"]) if response.status_code == 200 else []

    async def until(self, holds: Callable[[Decoders], bool], within_s: float) -> float | None:
        """Poll the decoders without a pause until ``holds``; returns seconds, ``None`` after ``within_s``."""
        begun = perf_counter()
        while perf_counter() - begun < within_s:
            decoders = await self.decoders()
            if holds(decoders):
                return perf_counter() - begun
            if not decoders:
                await asyncio.sleep(0.05)  # a refusal comes much sooner than an answer
        return None


async def formats_of(http: httpx.AsyncClient, url: str, ways: Iterable[Way]) -> Formats:
    """The number formats of the models that are asked, as the service tells them (GET /v1/models).

    Raises ``UserError`` if it does not answer as this service does, or lacks one of these models.
    """
    try:
        response = await http.get("/v1/models", timeout=60.0)
        told = {
            model["id"]: {"name": model["pasta"]["dtype"], "why": model["pasta"]["dtype_why"]}
            for model in response.raise_for_status().json()["data"]
        }
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{url}: /v1/models does not answer as this service does ({error})") from None
    names = [way.model for way in ways]
    for name in names:
        if name not in told:
            raise UserError(
                f"--config: its model {name!r} is none of the service's at {url} ({', '.join(sorted(told))})"
            )
    return {name: told[name] for name in names}


def busy(decoders: Decoders) -> int:
    """Number of requests and threads in the decoders, open leases counted."""
    return sum(each.get(name, 0) for each in decoders for name in ("active", "waiting", "lanes", "open"))


def idle(decoders: Decoders) -> bool:
    """Whether the decoders answer and have nothing to do."""
    return bool(decoders) and not busy(decoders)


@contextlib.contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """Stop these processes for a while: even an idle service takes a share of the cores, which slows another server
    whose threads wait for each other at every layer."""
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(pid: int) -> None:
    """Kill a process of the service with SIGKILL, like a crash; it must run on this machine."""
    os.kill(pid, signal.SIGKILL)
