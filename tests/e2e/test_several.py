"""Two Gateways, two Interpreters, two Decoders, served by Ray Serve's own command: it serves the same file, an
Interpreter's death costs its own requests and no others, and Ctrl-C leaves nothing.

In this order: one service for all of it.
"""

import concurrent.futures
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from serve.calls.ray_serve import PROXY_ENV
from serve.ray_start import free_port
from tests.support.service import START_S, Command, command, save_tiny_model, service_config
from tests.support.waiting import eventually

NUM_REQUESTS = 6


@dataclass(frozen=True)
class Served:
    """The command, and where it serves."""

    run: Command
    url: str

    def models(self) -> list[str]:
        assert self.run.process.poll() is None, self.run.output
        answer = httpx.get(f"{self.url}/v1/models", timeout=5).raise_for_status().json()
        return [model["id"] for model in answer["data"]]

    def replicas(self) -> list[str]:
        """The titles of those that have started, which Ray names after what they do."""
        titles = [" ".join(process.cmdline()) for process in self.run.descendants()]
        return [each for each in titles if "ServeReplica:" in each and ".initialize" not in each]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its leases are long: what ends within them was stopped, and has not run out."""
    folder = tmp_path_factory.mktemp("several")
    file = service_config(
        folder,
        save_tiny_model(folder / "model", endless=True),
        front={"gateways": 2, "interpreters": 2},
        decoder={"num_replicas": 2, "lease_s": 300.0},
    )
    config = yaml.safe_load(file.read_text())
    config["http_options"]["port"] = port = free_port()
    file.write_text(yaml.safe_dump(config))
    serve = Path(sys.executable).parent / "serve"
    # Without an address of its own it would join a Ray that happens to run on this machine. The variables are those
    # that docs/serve-a-model.md says to start Ray with, and the niceness is what `python -m serve.run` gives Ray.
    # And as in many companies there is an HTTP proxy, which no call within the service may take.
    environment = {**PROXY_ENV, "RAY_worker_niceness": "0", "http_proxy": "http://127.0.0.1:9"}
    with command(serve, "run", "--address", "local", file, log=folder / "log", **environment) as run:
        service = Served(run, f"http://127.0.0.1:{port}")
        assert eventually(service.models, START_S), run.output
        # It answers as soon as one replica of each kind is there.
        assert eventually(lambda: len(service.replicas()) == 6, START_S, every_s=0.5), run.output
        yield service


def decoders(url: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = httpx.get(f"{url}/ready", timeout=60).raise_for_status().json()["decoders"]
    return found


def long_answer(
    url: str, number: int, begun: threading.Event, go_on: threading.Event, max_tokens: int = 1500
) -> str:
    """Stream an answer of so many tokens, after its first event not before ``go_on``; returns the last event."""
    body = {
        "model": "pasta-atlas",
        "messages": [{"role": "user", "content": f"Count to {number}"}],
        "max_tokens": max_tokens,
        "stream": True,
        "pasta": {"mode": "sequential", "drafts": False},
        "logprobs": True,  # no steps run together, so that it takes a second
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


def test_serve_run_serves_the_configuration(service: Served) -> None:
    assert service.models() == ["pasta-atlas", "pasta-atlas-sequential"]


def test_a_dead_interpreter_costs_its_own_requests_one_retryable_error(service: Served) -> None:
    killed = threading.Event()
    interpreters = [p for p in service.run.descendants() if ":Interpreter" in " ".join(p.cmdline())]
    assert len(interpreters) == 2
    answers = []
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        for n in range(NUM_REQUESTS):
            # One after another: a Gateway knows what it has sent before, and gives each Interpreter some. Requests at
            # the same moment may all go to one.
            answers.append(pool.submit(long_answer, service.url, n, begun := threading.Event(), killed))
            assert begun.wait(120)
        # At once: none of the last ones may have ended.
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
    again = long_answer(service.url, 7, threading.Event(), killed, 30)
    assert again == "[DONE]"


def test_ctrl_c_of_serve_run_leaves_nothing(service: Served) -> None:
    service.run.end(signal.SIGINT)
    assert service.run.leaves_nothing()
