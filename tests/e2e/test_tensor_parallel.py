"""A Decoder of two processes that share a model: real Ray Serve, real gloo, on CPUs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pasta.engine import Engine, EngineConfig, Request, load_model
from pasta.interpreter import Limits
from tests.support.service import Service, save_tiny_model, service_config, serving
from tests.support.waiting import eventually

MESSAGES = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("shared")
    config = service_config(
        folder,
        model,
        models={"tiny": {"path": str(model), "dtype": "float32"}},
        decoder={"num_replicas": 1, "tensor_parallel": 2},
    )
    with serving(config, folder / "log") as service:
        yield service


def ask(url: str) -> str:
    body = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status().json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def decoders(url: str) -> list[dict[str, Any]]:
    try:
        response = httpx.get(f"{url}/ready", timeout=60)
    except httpx.TransportError:
        return []
    found: list[dict[str, Any]] = response.json().get("decoders", []) if response.is_success else []
    return found


def followers(service: Service) -> list[psutil.Process]:
    return [p for p in service.descendants() if ":Follower" in " ".join(p.cmdline())]


def test_two_processes_answer_as_one_and_come_back_when_one_has_died(service: Service, model: Path) -> None:
    engine = Engine(load_model(model, device="cpu"), EngineConfig(num_slots=3, slot_tokens=4096))
    prompt = engine.codec.encode_prompt(MESSAGES)
    # The end of the text, which a client's max_tokens does not count, is a token too.
    expected = engine.generate(Request(prompt, limits=Limits(max_tokens=40 + 1))).text
    assert ask(service.url) == expected
    (decoder,) = decoders(service.url)
    assert decoder["tensor_parallel"] == 2
    (entry,) = httpx.get(f"{service.url}/v1/models", timeout=60).json()["data"]
    assert entry["pasta"]["tensor_parallel"] == 2

    (follower,) = followers(service)
    os.kill(follower.pid, signal.SIGKILL)
    assert eventually(lambda: any(now["pid"] != decoder["pid"] for now in decoders(service.url)), 240.0), (
        service.output
    )
    assert ask(service.url) == expected

    # The other way round: nobody is left behind.
    (follower,), (decoder,) = followers(service), decoders(service.url)
    os.kill(decoder["pid"], signal.SIGKILL)
    assert eventually(lambda: not follower.is_running(), 60.0)
