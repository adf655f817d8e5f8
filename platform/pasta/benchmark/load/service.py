"""The service that is measured: its address, and what its decoders say of themselves."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import httpx

from pasta.benchmark.load.client import Ask, Reply, closed_loop, send

Decoders = list[dict[str, Any]]


class Service:
    """What is asked of a service; ``http`` is connected to it."""

    def __init__(self, http: httpx.AsyncClient, timeout_s: float = 600.0) -> None:
        self.http, self._timeout_s = http, timeout_s

    async def send(self, ask: Ask) -> Reply:
        """One request."""
        return await send(self.http, ask, self._timeout_s)

    async def run(self, asks: Sequence[Ask], clients: int) -> tuple[list[Reply], float]:
        """All of them by so many clients: answers in order, and seconds."""
        return await closed_loop(asks, clients, self.send)

    async def decoders(self) -> Decoders:
        """What each decoder is doing (GET /ready); none while the service does not say."""
        try:
            response = await self.http.get("/ready", timeout=10.0)
        except httpx.HTTPError:
            return []
        return list(response.json()["decoders"]) if response.status_code == 200 else []

    async def until(self, holds: Callable[[Decoders], bool], within_s: float) -> float | None:
        """Seconds until it holds, asked without a pause; ``None`` if it did not in time."""
        begun = perf_counter()
        while perf_counter() - begun < within_s:
            decoders = await self.decoders()
            if holds(decoders):
                return perf_counter() - begun
            if not decoders:
                await asyncio.sleep(0.05)  # it refuses to say much faster than it says
        return None


def busy(decoders: Decoders) -> int:
    """Requests and threads that are there; what a lease still holds (``open``) counts."""
    return sum(each.get(name, 0) for each in decoders for name in ("active", "waiting", "lanes", "open"))


def idle(decoders: Decoders) -> bool:
    """Whether the decoders answer and have nothing to do."""
    return bool(decoders) and not busy(decoders)


def kill(decoder: dict[str, Any]) -> int:
    """Kill a decoder as a crash would: at once. Returns its process id; it must run on this machine."""
    pid = int(decoder["pid"])
    os.kill(pid, signal.SIGKILL)
    return pid
