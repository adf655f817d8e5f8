"""Two Gateways, two Interpreters, two Decoders: an Interpreter's death costs its own requests, and no others."""

import concurrent.futures
import json
import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.support.service import Service, save_tiny_model, service_config, serving
from tests.support.waiting import eventually

NUM_REQUESTS = 6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its leases are long: what ends within them was stopped, and has not run out."""
    folder = tmp_path_factory.mktemp("several")
    config = service_config(
        folder,
        save_tiny_model(folder / "model", endless=True),
        front={"gateways": 2, "interpreters": 2},
        decoder={"num_replicas": 2, "lease_s": 300.0},
    )
    with serving(config, folder / "log") as service:
        yield service


def decoders(url: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = httpx.get(f"{url}/ready", timeout=60).raise_for_status().json()["decoders"]
    return found


def long_answer(url: str, number: int, begun: threading.Event, go_on: threading.Event) -> str:
    """Stream an answer of thousands of tokens, after its first event not before ``go_on``; returns the last event."""
    body = {
        "model": "pasta-atlas",
        "messages": [{"role": "user", "content": f"Count to {number}"}],
        "max_tokens": 3000,
        "stream": True,
        "pasta": {"mode": "sequential", "drafts": False},
    }
    last = ""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line and not last:
                begun.set()
                go_on.wait(120)
            last = line or last
    return last.removeprefix("data: ")


def test_a_dead_interpreter_costs_its_own_requests_one_retryable_error(service: Service) -> None:
    killed = threading.Event()
    answers = []
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        for n in range(NUM_REQUESTS):
            # One after another: a Gateway knows what it has sent before, and gives each Interpreter some. Requests at
            # the same moment may all go to one.
            answers.append(pool.submit(long_answer, service.url, n, begun := threading.Event(), killed))
            assert begun.wait(120)
        interpreters = [p for p in service.descendants() if ":Interpreter" in " ".join(p.cmdline())]
        assert len(interpreters) == 2
        os.kill(interpreters[0].pid, signal.SIGKILL)
        killed.set()
        ends = [answer.result() for answer in answers]
    failed = [json.loads(end)["error"]["code"] for end in ends if end != "[DONE]"]
    assert set(failed) <= {"service_unavailable"}
    assert 0 < len(failed) < NUM_REQUESTS, "both Interpreters had some"
    # Long before their leases run out.
    assert eventually(
        lambda: not sum(d["active"] + d["waiting"] + d["open"] for d in decoders(service.url)), 60.0
    )
    assert sum(d["reaped"] for d in decoders(service.url)) == 0
    again = long_answer(service.url, 7, threading.Event(), killed)
    assert again == "[DONE]"
