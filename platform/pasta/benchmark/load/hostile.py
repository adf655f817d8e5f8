"""Sends hostile requests to a service, one after another, or a large one several times at once. Checks what the service
answers, and how long each request keeps others waiting."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import httpx

from pasta.benchmark.load.bodies import HostileRequest, Routes, hostile_request
from pasta.benchmark.load.memory import growing
from pasta.benchmark.load.scenarios import Bench
from pasta.benchmark.load.settings import LoadSettings
from pasta.benchmark.load.sse import EventReader
from pasta.errors import UserError
from pasta.stages.records import Record

#: No request may hold the event loop of the Gateway for longer.
HELD_MS = 50.0
#: GET /health is to answer within this time, whatever else arrives.
HEALTH_MS = 100.0
#: Requests of a record: an interrupted run goes on after the last whole one.
_BLOCK = 100
#: The service reports its longest hold of so many seconds; a hold of less than so many milliseconds counts as none.
_REMEMBERED_S, _QUIET_MS = 11.0, 15.0
_MEMORY_EVERY = 5
#: The fields of an error's body, as OpenAI's errors have.
_ERROR = {"message", "type", "param", "code"}


def hostile_keys(settings: LoadSettings) -> list[str]:
    """The number of each block's first request."""
    return [str(number) for number in range(0, settings.hostile, _BLOCK)]


async def hostile(bench: Bench, key: str) -> Record:
    """Send the requests of a block, each once the one before has its answer, with GET /health beside it."""
    service, settings = bench.service, bench.settings
    routes, model = await _routes(service.http), bench.ways["parallel"].model
    before = await _quiet(service.http)
    statuses: dict[str, Counter[str]] = {}
    wrong: list[Record] = []
    samples: dict[str, list[float]] = {}
    longest = {"busy_ms": 0.0, "late_ms": 0.0, "health_ms": 0.0}
    begun, end = perf_counter(), min(int(key) + _BLOCK, settings.hostile)
    for number in range(int(key), end):
        request = hostile_request(number, settings.hostile_seed, model, routes, bench.max_body_bytes)
        if bench.memory and number % _MEMORY_EVERY == 0:
            for name, mib in bench.memory().items():
                samples.setdefault(name, []).append(round(mib, 1))
        (status, why), health_ms = await _beside_health(service.http, request, settings.timeout_s)
        statuses.setdefault(request.kind, Counter())[status] += 1
        after = await _gateway(service.http)
        found = [why] if why else []
        if after["pid"] != before["pid"]:
            found.append("the Gateway did not survive it")
        elif after["busy_ms"] > max(HELD_MS, before["busy_ms"]):
            found.append(f"it held the event loop for {after['busy_ms']:.0f} ms")
        wrong += [
            {"number": number, "kind": request.kind, "path": request.path, "why": each} for each in found
        ]
        new = {name: after[name] for name in ("busy_ms", "late_ms") if after[name] > before[name]}
        for name, value in {**new, "health_ms": health_ms}.items():
            longest[name] = max(longest[name], value)
        before = after
    return {
        "requests": end - int(key),
        "seconds": perf_counter() - begun,
        "statuses": {kind: dict(counts) for kind, counts in statuses.items()},
        "wrong": wrong,
        "memory_mib": samples,
        **longest,
    }


async def _beside_health(
    http: httpx.AsyncClient, request: HostileRequest, timeout_s: float
) -> tuple[tuple[str, str], float]:
    """Send a request with GET /health beside it. Returns the request's answer (of several copies, one that was answered
    wrongly if there is any), and the milliseconds of the slowest GET /health."""
    sent = asyncio.gather(*(_send(http, request, timeout_s) for _ in range(request.copies)))
    slowest = 0.0
    while not sent.done():
        begun = perf_counter()
        try:
            await http.get("/health", timeout=timeout_s)
        except httpx.HTTPError:
            await asyncio.sleep(0.1)  # the request itself says what is wrong
        slowest = max(slowest, 1000 * (perf_counter() - begun))
        await asyncio.sleep(0.01)
    return max(await sent, key=lambda answered: bool(answered[1])), slowest


async def _send(http: httpx.AsyncClient, request: HostileRequest, timeout_s: float) -> tuple[str, str]:
    """Send a request; returns the answer's status, or what came instead, and what is wrong with it (empty: nothing)."""
    try:
        async with asyncio.timeout(timeout_s):
            headers = {name.encode(): value.encode("latin-1") for name, value in request.headers.items()}
            response = await http.post(request.path, content=request.body, headers=headers)
    except TimeoutError:
        return "stuck", f"no answer within {timeout_s:g} s"
    except httpx.HTTPError as error:
        return "dropped", f"the connection was dropped ({type(error).__name__})"
    return judged(response)


def judged(response: httpx.Response) -> tuple[str, str]:
    """The status of an answer (of a stream, the status of its error if it has one), and what is wrong with it."""
    status = str(response.status_code)
    if response.status_code >= 500:
        return status, f"{status}: {response.text[:200]}"
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        *_, last = [None, *EventReader().feed(response.content)]
        if last is None:
            return "dropped", "the stream is empty"
        error = None if last == "[DONE]" else json.loads(last).get("error")
        if error is None:
            return status, "" if last == "[DONE]" else "the stream ended without [DONE]"
        return f"{status}, {error['type']}", f"in a stream: {error['message']}" if error[
            "type"
        ] == "server_error" else ""
    try:
        data = response.json()
    except ValueError:
        return status, f"{status}: the answer is not JSON"
    if response.status_code >= 400 and _ERROR - {*(data.get("error") or {})}:
        return status, f"{status}: the answer is not an error of OpenAI's form"
    return status, ""


async def _routes(http: httpx.AsyncClient) -> Routes:
    """The POST routes that the service describes, with the fields of their bodies."""
    paths = (await http.get("/openapi.json", timeout=60.0)).raise_for_status().json()["paths"]
    bodies = {path: each["post"]["requestBody"] for path, each in paths.items() if "post" in each}
    return {
        path: sorted(body["content"]["application/json"]["schema"]["properties"])
        for path, body in bodies.items()
    }


async def _quiet(http: httpx.AsyncClient) -> dict[str, Any]:
    """The Gateway's state, once nothing has held its event loop for a while: an earlier, longer hold would hide a new
    one."""
    until = perf_counter() + _REMEMBERED_S
    while (state := await _gateway(http))["busy_ms"] > _QUIET_MS and perf_counter() < until:
        await asyncio.sleep(0.5)
    return state


async def _gateway(http: httpx.AsyncClient) -> dict[str, Any]:
    """What GET /ready says of the Gateway, as soon as the service is ready. Raises ``UserError`` if it is not."""
    until = perf_counter() + 60.0
    while perf_counter() < until:
        try:
            response = await http.get("/ready", timeout=10.0)
        except httpx.HTTPError:
            await asyncio.sleep(0.5)
            continue
        if response.status_code == 200:
            return dict(response.json()["gateway"])
        await asyncio.sleep(0.5)
    raise UserError("hostile: the service has not been ready for a minute")


def hostile_violations(records: Sequence[Record]) -> list[str]:
    """Lists wrong answers and growing processes, a line each."""
    found = [
        f"request {each['number']} ({each['kind']}, {each['path']}): {each['why']}"
        for record in records
        for each in record["wrong"]
    ]
    return found + growing(memory_of(records))


def memory_of(records: Sequence[Record]) -> dict[str, list[float]]:
    """The samples of each process over all records."""
    joined: dict[str, list[float]] = {}
    for record in records:
        for name, samples in record["memory_mib"].items():
            joined.setdefault(name, []).extend(samples)
    return joined
