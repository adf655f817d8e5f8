"""Following a job over a connection that breaks. A job server of our own, speaking Ray's protocol, breaks it."""

import asyncio
import importlib
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from aiohttp import web

from jobs import job_server
from jobs.job_server import JobServer, exit_code
from pasta.errors import UserError


class Breaking:
    """A job server with one job, whose log's first connection is cut in the middle of a line."""

    def __init__(self) -> None:
        self.statuses = ["PENDING", "PENDING", "RUNNING"]
        self.connections = 0
        self.ended = False
        #: How often a job is refused before the cluster has started.
        self.refusals = 0
        self.sent = 0
        self.too_large = False

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/api/version", self.version)
        application.router.add_post("/api/jobs/", self.submit)
        application.router.add_get("/api/jobs/job", self.details)
        application.router.add_get("/api/jobs/job/logs/tail", self.tail)
        application.router.add_get("/api/jobs/{other}", self.unknown)
        return application

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": ""})

    async def submit(self, request: web.Request) -> web.Response:
        self.sent += 1
        if self.too_large:
            raise web.HTTPRequestEntityTooLarge(max_size=100, actual_size=101)
        if self.sent > self.refusals:
            return web.json_response({"job_id": "job", "submission_id": "job"})
        return web.Response(status=500, text="No available agent to submit job, please try again later.")

    async def unknown(self, request: web.Request) -> web.Response:
        return web.Response(status=404, text=f"Job {request.match_info['other']} does not exist")

    async def details(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if self.ended:
            status = "FAILED"
        return web.json_response(
            {
                "type": "SUBMISSION",
                "entrypoint": "x",
                "status": status,
                "message": "waiting for resources (CPUs)",
                "start_time": 0,
                "driver_exit_code": 3 if self.ended else None,
            }
        )

    async def tail(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections += 1
        if self.connections == 1:
            await socket.send_str("one\ntw")
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
            return socket
        for text in ("one\n", "two\nthr", "ee\n"):
            await socket.send_str(text)
        self.ended = True
        return socket


@pytest.fixture
def breaking(monkeypatch) -> Iterator[tuple[JobServer, Breaking]]:
    for pause in ("_LONGEST_PAUSE_S", "_AGENT_PAUSE_S"):
        monkeypatch.setattr(job_server, pause, 0.01)
    server, loop = Breaking(), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(server.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield JobServer(f"http://127.0.0.1:{port}", {}), server
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)


@pytest.mark.slow
def test_the_log_goes_on_where_it_broke_off_and_the_exit_code_is_the_job_s(breaking):
    server, other = breaking
    log: list[str] = []
    said: list[str] = []
    info = server.follow("job", log.append, said.append)
    assert "".join(log) == "one\ntwo\nthree\n"
    assert other.connections == 2
    assert exit_code(info) == 3
    # What it waits for is said once.
    assert said[0] == "job job: waiting for resources (CPUs)"
    assert len(said) == 2
    assert said[1].endswith("trying again")


@pytest.mark.parametrize(("refusals", "sent"), [(0, 1), (2, 3), (99, job_server._SUBMIT_ATTEMPTS)])
def test_a_cluster_that_has_just_started_is_asked_again(breaking, refusals, sent):
    server, other = breaking
    other.refusals = refusals
    said: list[str] = []
    submission: Any = SimpleNamespace(id="job", entrypoint="x", runtime_env={}, metadata={})
    refused = pytest.raises(UserError, match="No available agent to submit job, please try again later")
    with refused if refusals >= sent else nullcontext():
        server.submit(submission, {}, said.append)
    assert other.sent == sent
    assert said == ["job job: the cluster takes no jobs on yet; trying again"] * (sent - 1)


def test_code_that_is_too_large_for_the_server_is_told_by_its_folders(breaking):
    server, other = breaking
    other.too_large = True
    submission: Any = SimpleNamespace(id="job", entrypoint="x", runtime_env={}, metadata={})
    with pytest.raises(UserError, match="expected less in configs, jobs, platform, serve"):
        server.submit(submission, {}, print)


def test_a_port_that_speaks_another_protocol_is_no_dashboard():
    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(1024)
        connection.sendall(b"\0\0\x18\x04\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        with pytest.raises(UserError, match="is no Ray dashboard; expected an address such as"):
            JobServer(f"http://127.0.0.1:{listener.getsockname()[1]}", {})


def test_a_job_that_nobody_knows_is_told_at_once(breaking):
    server, _ = breaking
    said: list[str] = []
    with pytest.raises(UserError, match="Job nothing does not exist"):
        server.follow("nothing", said.append, said.append)
    assert said == []


def test_a_cluster_that_stays_away_ends_the_following_and_not_the_job(breaking, monkeypatch):
    server, other = breaking
    monkeypatch.setattr(job_server, "_ATTEMPTS", 3)
    server.address = "http://127.0.0.1:9"
    server._client._address = server.address
    with pytest.raises(UserError, match="it may be running still") as caught:
        server.follow("job", print, lambda line: None)
    assert "\n" not in str(caught.value)
    assert not other.ended


def test_a_proxy_of_the_web_on_the_way_is_told(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    with pytest.raises(
        UserError, match=r"cannot be reached .*export no_proxy=127.0.0.2 if it knows no"
    ) as caught:
        JobServer("http://127.0.0.2:8265", {})
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.2")
    with pytest.raises(UserError, match=r"is the cluster running\?$"):
        JobServer("http://127.0.0.2:8265", {})


@pytest.mark.parametrize("name", job_server.RAYS_LOGGERS)
def test_ray_still_logs_by_the_names_that_are_kept_quiet(name):
    gone = f"ray {ray.__version__} has no module {name} with a logger: look where its lines come from now"
    try:
        module = importlib.import_module(name)
    except ImportError:
        pytest.fail(gone)
    assert any(isinstance(each, logging.Logger) and each.name == name for each in vars(module).values()), gone
