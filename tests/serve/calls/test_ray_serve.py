"""The router as Ray ships it to the processes that call Decoders."""

import asyncio
from types import SimpleNamespace

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import ReplicaID, RequestRouter

from serve.calls.ray_serve import PinnedRouter, pin
from serve.calls.replicas import ReplicaLost, known_replicas


def test_the_router_that_ray_has_pickled_tells_this_process_who_is_there():
    # Ray pickles it by value, module and all.
    router = RequestRouterConfig(
        request_router_class="serve.calls.ray_serve.PinnedRouter"
    ).get_request_router_class()
    known = router._publish.__globals__
    assert known["known_replicas"] is known_replicas
    assert router._choose_replica_for_request.__globals__["ReplicaLost"] is ReplicaLost


def choice(monkeypatch, session_id, *names, is_retry=False):
    """The replica that a call goes to, or what Serve's own router says."""

    async def serve(*_, **__):
        return "serve chooses"

    monkeypatch.setattr(RequestRouter, "_choose_replica_for_request", serve)
    replicas = {ReplicaID(name, DeploymentID("Decoder")): name for name in names}
    monkeypatch.setattr(PinnedRouter, "curr_replicas", replicas)
    router = PinnedRouter.__new__(PinnedRouter)
    router._leaving = {}
    pending = SimpleNamespace(metadata=SimpleNamespace(session_id=session_id))
    return asyncio.run(router._choose_replica_for_request(pending, is_retry=is_retry))


def test_a_pinned_call_goes_to_its_replica(monkeypatch):
    assert choice(monkeypatch, pin("b"), "a", "b") == "b"


def test_a_call_that_is_pinned_to_a_replica_that_is_gone_is_lost(monkeypatch):
    with pytest.raises(ReplicaLost, match="replica c is gone"):
        choice(monkeypatch, pin("c"), "a", "b")


def test_a_call_without_a_pin_waits_for_no_choice_where_there_is_none(monkeypatch):
    assert choice(monkeypatch, "", "a") == "a"
    assert choice(monkeypatch, "", "a", "b") == "serve chooses"
    assert choice(monkeypatch, "", "a", is_retry=True) == "serve chooses", "it was full"
