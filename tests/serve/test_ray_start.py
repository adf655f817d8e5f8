"""The methods by which Ray starts processes that one machine has no use for are still there, and are left out."""

import ctypes
import errno
import inspect
import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private.authentication.authentication_token_setup import _get_default_token_path
from ray._private.node import Node

from pasta.errors import CutShort, UserError
from pasta.signals import Terminated
from serve import ray_start
from serve.ray_start import FREE_PORTS, check_ray, few_processes, free_port, start_ray, stop_ray
from tests.support.paths import ROOT
from tests.support.waiting import eventually

PINNED = re.search(r"ray (\d+\.\d+\.\d+)", ray_start.__doc__ or "")[1]


def gone(what):
    return (
        f"ray {ray.__version__} has no {what}: serve/ray_start.py was written against ray {PINNED}. "
        "Adapt that module, or pin that version again."
    )


def test_the_pinned_version_is_the_one_that_it_was_written_against():
    locked = re.search(r"^ray==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
    assert locked == PINNED, "check the private API that serve/ray_start.py lists, then name the new version"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("start_monitor", ["self"]), ("start_api_server", ["self", "include_dashboard", "raise_on_failure"])],
)
def test_a_head_node_starts_its_processes_by_the_methods_that_are_replaced(method, parameters):
    found = getattr(Node, method, None)
    assert found is not None, gone(f"Node.{method}")
    assert [*inspect.signature(found).parameters] == parameters, gone(f"Node.{method}({parameters})")
    assert method in Node.start_head_processes.__code__.co_names, gone(f"call of Node.{method}")


def test_a_dashboard_starts_only_where_it_is_asked_for_and_an_autoscaler_never(monkeypatch):
    started = []
    monkeypatch.setattr(Node, "start_api_server", lambda node, **options: started.append(options))
    monkeypatch.setattr(Node, "start_monitor", lambda node: started.append("autoscaler"))
    node = SimpleNamespace(_webui_url=None)
    with few_processes():
        Node.start_monitor(node)
        Node.start_api_server(node, include_dashboard=False, raise_on_failure=False)
        assert (started, node._webui_url) == ([], "")
        Node.start_api_server(node, include_dashboard=True, raise_on_failure=True)
    Node.start_monitor(node)
    assert started == [{"include_dashboard": True, "raise_on_failure": True}, "autoscaler"]


def is_sigterm_ignored():
    """By the system, whatever Python knows of it."""
    ignored = re.search(r"^SigIgn:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1]
    return int(ignored, 16) >> (signal.SIGTERM - 1) & 1


def test_sigterm_while_ray_starts_or_stops_is_no_exit_of_ray_s(monkeypatch):
    """Ray installs a handler of its own as it starts; what is sent while it stops would leave processes behind."""
    stopped, before = [], signal.getsignal(signal.SIGTERM)

    def init(**_):
        sys.exit(signal.SIGTERM)

    def shutdown():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        ctypes.CDLL(None).signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray's core does
        assert eventually(is_sigterm_ignored, every_s=0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        stopped.append("whole")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(Terminated):
        start_ray(lambda: None)
    stop_ray()
    assert (stopped, signal.getsignal(signal.SIGTERM)) == (["whole"], before)


def test_a_machine_that_does_not_reach_itself_is_refused_before_ray_tries_for_ever(monkeypatch):
    """As in a container without a network whose interface lo is down."""

    def unreachable(address, timeout):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    with pytest.raises(UserError, match=r"^127\.0\.0\.1: .*\(Network is unreachable\).*ip link set lo up$"):
        start_ray(lambda: None, address="local")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_home_that_is_full_is_told_with_the_file_that_ray_keeps_there(monkeypatch, tmp_path, number):
    """The error of the write names no file, and nobody knew which disk was full."""

    def init(**_):
        with _get_default_token_path().open("w"):
            raise OSError(number, os.strerror(number))

    (tmp_path / ".ray").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=rf"^HOME: {tmp_path}/\.ray/auth_token: cannot be written \("):
        start_ray(lambda: None)


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_process_that_ray_needs_and_that_has_ended_is_told(monkeypatch, name):
    """The system has killed it: a job waited for its next worker for ever."""
    assert hasattr(Node, "dead_processes"), gone("Node.dead_processes")
    assert hasattr(ray._private.worker, "_global_node"), gone("worker._global_node")
    ended = [("log_monitor", None)]
    monkeypatch.setattr(ray._private.worker, "_global_node", SimpleNamespace(dead_processes=lambda: ended))
    check_ray()
    ended.append((name, None))
    with pytest.raises(CutShort, match=f"^Ray's process {name} has ended, "):
        check_ray()


def test_a_free_port_is_none_that_the_system_hands_out_before_it_is_used():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < 32768:
        pytest.skip(f"this machine hands out ports from {lowest} on, Linux from 32768 unless told otherwise")
    assert FREE_PORTS.stop <= lowest
    assert free_port() in FREE_PORTS


def test_a_port_in_use_is_not_free(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        used = other.getsockname()[1]
        monkeypatch.setattr(ray_start, "FREE_PORTS", range(used, used + 100))
        assert used not in {free_port() for _ in range(20)}
        monkeypatch.setattr(ray_start, "FREE_PORTS", range(used, used + 1))
        with pytest.raises(OSError, match=f"from {used} to {used}"):
            free_port()


def test_two_free_ports_are_never_the_same(monkeypatch):
    """Ray's processes, or HAProxy's two pages, would not start."""
    first = free_port()
    monkeypatch.setattr(ray_start, "FREE_PORTS", range(first, first + 20))
    ports = [first, *(free_port() for _ in range(12))]
    assert len({*ports}) == 13
