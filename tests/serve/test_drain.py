"""SIGTERM: the service asks its Gateways to finish what is open (the Gateway's own part: gateway/test_drain.py)."""

import threading
from types import SimpleNamespace

from pasta.errors import CutShort
from serve import drain
from serve.drain import finish_requests


def test_the_service_ends_when_nobody_is_left_who_could_finish_requests(monkeypatch):
    """As where systemd sends SIGTERM to each process: Ray waits for its own in C++, for a minute."""
    forever = threading.Event()
    gateway = SimpleNamespace(broadcast=lambda *_: forever.wait())
    monkeypatch.setattr(drain, "_LOOK_S", 0.01)
    looks = iter([None, None, CutShort("Ray's process raylet has ended")])

    def check_ray():
        if found := next(looks):
            raise found

    monkeypatch.setattr(drain, "check_ray", check_ray)
    finish_requests(gateway, 120, lambda _: None)
    assert not list(looks)
    forever.set()


def test_the_service_ends_as_soon_as_the_gateways_have_finished(monkeypatch):
    asked = []

    def broadcast(method, within_s):
        asked.append((method, within_s))
        return SimpleNamespace(results=lambda timeout_s: asked.append(timeout_s > within_s))

    monkeypatch.setattr(drain, "check_ray", lambda: None)
    finish_requests(SimpleNamespace(broadcast=broadcast), 120, asked.append)
    assert asked == ["finishing open requests, for 120 s at most", ("drain", 120), True]
