"""Ray Serve's private APIs are still there, and the router does what it is there for."""

import asyncio
import contextlib
import dataclasses
import inspect
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
import ray.serve.metrics
from ray.serve._private import common, handle_options, router
from ray.serve._private.common import DeploymentID
from ray.serve.config import HTTPOptions, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import ReplicaID, RequestRouter

from serve.calls import ray_serve
from serve.calls.ray_serve import PROXY_ENV, REPLICA_ENV, DeploymentClient, PinnedRouter, pin
from serve.calls.replicas import ReplicaLost, known_replicas
from serve.ingress import ingress_env
from serve.ray_start import free_port
from tests.support.paths import ROOT

# -- what the adapter takes for granted ------------------------------------------------------------------------

PINNED = re.search(r"ray (\d+\.\d+\.\d+)", ray_serve.__doc__ or "")[1]


def gone(what):
    return (
        f"ray {ray.__version__} has no {what}: serve/calls/ray_serve.py was written against ray {PINNED}. "
        "Adapt that module, or pin that version again."
    )


def fields(options):
    return {field.name for field in dataclasses.fields(options)}


def test_the_pinned_version_is_the_one_that_the_adapter_was_written_against():
    locked = re.search(r"^ray==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
    assert locked == PINNED, (
        "check each private API that serve/calls/ray_serve.py lists, then name the new version"
    )


def test_a_handle_is_initialised_with_the_router_on_the_caller_s_loop():
    assert hasattr(DeploymentHandle, "_init"), gone("DeploymentHandle._init")
    assert isinstance(inspect.getattr_static(DeploymentHandle, "is_initialized", None), property), gone(
        "DeploymentHandle.is_initialized"
    )
    known = fields(handle_options.InitHandleOptions)
    assert "_run_router_in_separate_loop" in known, gone("option _run_router_in_separate_loop of a handle")


def test_the_controller_has_a_name():
    from ray.serve._private import constants

    for name in ("SERVE_CONTROLLER_NAME", "SERVE_NAMESPACE"):
        assert hasattr(constants, name), gone(f"serve._private.constants.{name}")


@pytest.mark.parametrize(
    "option", ["_by_reference", "session_id", "request_serialization", "response_serialization"]
)
def test_a_call_takes_the_options_of_a_client(option):
    parameters = inspect.signature(DeploymentHandle.options).parameters
    assert option in parameters, gone(f"option {option} of a handle")
    assert option in fields(handle_options.DynamicHandleOptions), gone(f"option {option} of a call")


def test_the_router_sees_the_session_id_of_a_call():
    assert "session_id" in fields(common.RequestMetadata), gone("session_id in a call's metadata")


def test_the_router_can_be_overridden_before_its_queues():
    choose = getattr(RequestRouter, "_choose_replica_for_request", None)
    assert choose is not None, gone("RequestRouter._choose_replica_for_request")
    assert list(inspect.signature(choose).parameters) == ["self", "pending_request", "is_retry"], gone(
        "RequestRouter._choose_replica_for_request(pending_request, is_retry=…)"
    )
    # Ray's own code calls it to route each call.
    calls = inspect.getsource(router).count("_active_request_router._choose_replica_for_request(")
    assert calls >= 1, gone("call of RequestRouter._choose_replica_for_request")


def test_a_router_knows_its_deployment():
    assert "self._deployment_id =" in inspect.getsource(RequestRouter.__init__), gone(
        "RequestRouter._deployment_id"
    )


@pytest.mark.slow
def test_ray_serve_reads_the_variables_that_processes_are_started_with():
    code = "import ray.serve._private.constants as c; print(*(repr(getattr(c, n, 'gone')) for n in {!r}))"
    shorter = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "PROXY_READY_CHECK_TIMEOUT_S"}  # what Serve calls it
    wanted = {
        "RAY_SERVE_PROXY_USE_GRPC": "True",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60.0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "False",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "'serve.gateway.proxy.middlewares'",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "False",
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": "2147483647",
    }
    assert {*wanted, "grpc_proxy"} == PROXY_ENV.keys() | REPLICA_ENV.keys()
    command = [sys.executable, "-c", code.format([shorter.get(name, name) for name in wanted])]
    environment = {**os.environ, **PROXY_ENV, **REPLICA_ENV}
    read = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for (name, value), found in zip(wanted.items(), read.split(), strict=True):
        assert found == value, gone(f"variable {name}")


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["ray", "haproxy", "none"])
def test_ray_serve_reads_how_clients_reach_a_gateway(tmp_path, proxy):
    given = ingress_env(proxy, 8123, tmp_path)
    code = "import ray.serve._private.constants as c; from serve.calls.ray_serve import started_proxy; "
    code += "print(started_proxy(), *(getattr(c, n) for n in {!r}))".format(
        [name for name in given if "_ENABLE_" not in name]
    )
    command = [sys.executable, "-c", code]
    read = subprocess.run(
        command, env={**os.environ, **given}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = read.stdout.split()
    expected = [value for name, value in given.items() if "_ENABLE_" not in name]
    assert found[0] == proxy, gone("one of RAY_SERVE_ENABLE_HA_PROXY and RAY_SERVE_ENABLE_DIRECT_INGRESS")
    assert [value.removesuffix(".0") for value in found[1:]] == expected, gone(f"variable of {proxy}")


def test_a_counter_can_be_exported_as_zero():
    assert hasattr(ray.serve.metrics.Counter, "_record"), gone("Counter._record")


def test_a_replica_s_send_tells_what_is_not_sent_yet():
    from ray.serve._private import replica
    from ray.serve._private.http_util import MessageQueue

    source = inspect.getsource(replica.UserCallableWrapper.call_http_entrypoint)
    queue = MessageQueue()
    found = re.search(r"async def enqueue\(item: Any\):\n +result_queue\.put_nowait\(item\)", source)
    assert found, gone("queue behind an ASGI application's send")
    assert len(queue._message_queue) == 0, gone("MessageQueue._message_queue")

    async def send(item):
        queue.put_nowait(item)

    unsent = ray_serve.unsent(send)
    asyncio.run(send({}))
    assert unsent() == 1
    queue.get_messages_nowait()
    assert unsent() == 0


def test_a_port_with_connections_that_still_end_is_taken_at_once(monkeypatch):
    from ray.serve._private import http_util

    assert hasattr(http_util, "socket"), gone("http_util.socket")
    monkeypatch.setattr(http_util, "socket", socket)  # a Gateway of an earlier test has changed it, perhaps
    ray_serve.reuse_addresses()
    port = free_port()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body"})

    async def serve_one_request():
        options = HTTPOptions(host="127.0.0.1", port=port)
        loop = asyncio.get_running_loop()
        task, server = await http_util.start_asgi_http_server(app, options, event_loop=loop)
        async with httpx.AsyncClient(trust_env=False) as http:
            for _ in range(100):
                with contextlib.suppress(httpx.ConnectError):
                    answer = await http.get(f"http://127.0.0.1:{port}")
                    break
                await asyncio.sleep(0.05)
        server.should_exit = True
        await task
        return answer.status_code

    assert asyncio.run(serve_one_request()) == 204
    with socket.socket() as without, pytest.raises(OSError, match="in use"):
        without.bind(("127.0.0.1", port))
    assert asyncio.run(serve_one_request()) == 204


def test_no_other_module_of_the_service_uses_a_private_api_of_ray():
    private = re.compile(
        r"_by_reference|_run_router_in_separate_loop|_choose_replica_for|\._deployment_id|ray\.serve\._|\._record\(0"
    )
    for file in (ROOT / "serve").rglob("*.py"):
        if file.name != "ray_serve.py":
            assert not private.search(file.read_text(encoding="utf-8")), file


# -- clients -----------------------------------------------------------------------------------------------------


class Handle:
    """Notes how a client calls it."""

    def __init__(self):
        self.is_initialized, self.made, self.called = False, [], []

    def _init(self, **options):
        self.is_initialized = True
        self.made.append(options)

    def options(self, **options):
        self.called.append(options)
        return self

    async def remote(self, *args):
        return args


def test_a_client_initialises_its_handle_once_and_pins_its_calls():
    async def scenario(handle):
        client = DeploymentClient(handle)
        client.open()
        return [await client.call("stats", 1), await client.call("stats", 2, replica="b")]

    handle = Handle()
    assert asyncio.run(scenario(handle)) == [(1,), (2,)]
    assert handle.made == [{"_run_router_in_separate_loop": False}]
    assert [options["session_id"] for options in handle.called] == ["", pin("b")]
    assert not any(options["_by_reference"] for options in handle.called)


# -- the router --------------------------------------------------------------------------------------------------


def test_the_router_that_ray_has_pickled_tells_this_process_who_is_there():
    # Ray pickles it by value, module and all.
    config = RequestRouterConfig(request_router_class="serve.calls.ray_serve.PinnedRouter")
    pickled = config.get_request_router_class()
    known = pickled._publish.__globals__
    assert known["known_replicas"] is known_replicas
    assert pickled._choose_replica_for_request.__globals__["ReplicaLost"] is ReplicaLost


def choice(monkeypatch, session_id, *names, is_retry=False):
    """The replica that a call goes to, or what Serve's own router says."""

    async def serve(*_, **__):
        return "serve chooses"

    monkeypatch.setattr(RequestRouter, "_choose_replica_for_request", serve)
    replicas = {ReplicaID(name, DeploymentID("Decoder")): name for name in names}
    monkeypatch.setattr(PinnedRouter, "curr_replicas", replicas)
    pinned = PinnedRouter.__new__(PinnedRouter)
    pinned._leaving = {}
    pending = SimpleNamespace(metadata=SimpleNamespace(session_id=session_id))
    return asyncio.run(pinned._choose_replica_for_request(pending, is_retry=is_retry))


def test_a_pinned_call_goes_to_its_replica(monkeypatch):
    assert choice(monkeypatch, pin("b"), "a", "b") == "b"


def test_a_call_that_is_pinned_to_a_replica_that_is_gone_is_lost(monkeypatch):
    with pytest.raises(ReplicaLost, match="replica c is gone"):
        choice(monkeypatch, pin("c"), "a", "b")


def test_a_call_without_a_pin_waits_for_no_choice_where_there_is_none(monkeypatch):
    assert choice(monkeypatch, "", "a") == "a"
    assert choice(monkeypatch, "", "a", "b") == "serve chooses"
    assert choice(monkeypatch, "", "a", is_retry=True) == "serve chooses", "it was full"
