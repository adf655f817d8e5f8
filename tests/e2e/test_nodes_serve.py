"""A service over two nodes, deployed as configs/serve/gpu.yaml is, one of which dies. Real Ray, the shipped model."""

import concurrent.futures
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from serve.ray_start import free_port
from tests.support.nodes import Node, Nodes
from tests.support.service import shipped_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

PLANETS = "Describe Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune."
#: One Decoder fits a node.
DECODER = {"num_cpus": 0.5, "resources": {"decoder": 1}}


@dataclass
class Service:
    """The service, the node that its Decoders share with nobody else, and how to ask it."""

    nodes: Nodes
    other: Node
    url: str
    http: httpx.Client

    def body(self, placement: str, **fields: object) -> dict[str, object]:
        return {
            "model": "pasta-atlas",
            "messages": [{"role": "user", "content": PLANETS}],
            "temperature": 0,
            # The answer itself is over in 0.1 s, before a node has died.
            "ignore_eos": True,
            "max_tokens": 900,
            "pasta": {"placement": placement},
            **fields,
        }

    def ask(self, placement: str) -> tuple[str, dict]:
        answer = self.http.post("/v1/chat/completions", json=self.body(placement)).raise_for_status().json()
        return answer["choices"][0]["message"]["content"], answer["pasta"]

    def decoders(self) -> list[dict]:
        return self.http.get("/ready").raise_for_status().json()["decoders"]

    def two_nodes(self) -> bool:
        """Whether there are two Decoders, one on each node."""
        decoders = self.decoders()
        return len(decoders) == 2 and sum(self.other.holds(decoder["pid"]) for decoder in decoders) == 1


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    file = shipped_config(
        tmp_path_factory.mktemp("nodes"),
        front={"resources": {"front": 0.1}},
        decoder={**DECODER, "num_replicas": 2, "lease_s": 2.0},
    )
    config = yaml.safe_load(file.read_text())
    config["http_options"]["port"] = port = free_port()
    file.write_text(yaml.safe_dump(config))
    with Nodes(num_cpus=2, dashboard=True, resources={"front": 1, "decoder": 1}) as nodes:
        other = nodes.add(num_cpus=1, resources={"decoder": 1})
        deployed = nodes.run(
            Path(sys.executable).parent / "serve", "deploy", "--address", nodes.dashboard, file
        )
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=120) as http:
            service = Service(nodes, other, url, http)
            assert eventually(service.two_nodes, 240)
            yield service


def test_gateway_and_interpreter_are_where_their_resource_is(service):
    def where(node: Node) -> set[str]:
        names = ("Gateway", "Interpreter", "Decoder")
        return {name for name in names if node.workers(f":{name}")}

    assert where(service.nodes.head) == {"Gateway", "Interpreter", "Decoder"}
    assert where(service.other) == {"Decoder"}


def test_an_answer_over_two_nodes_is_that_of_one(service):
    alone, figures = service.ask("local")
    assert figures["spills"] == 0
    text, figures = service.ask("spread")
    assert text == alone
    assert figures["spills"] > 0


@pytest.mark.parametrize("end", [Nodes.kill, Nodes.freeze], ids=["dies", "falls silent"])
def test_open_streams_survive_a_node_that(service, end):
    """And a new one takes its place."""
    whole, _ = service.ask("local")
    begun = threading.Event()
    pieces_before = 4

    def stream(_: int) -> tuple[str, int]:
        pieces, redispatches = [], 0
        with httpx.Client(base_url=service.url, timeout=120) as http:
            body = service.body("spread", stream=True)
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                for line in response.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line[6:])
                    assert "error" not in chunk, chunk
                    redispatches = chunk.get("pasta", {}).get("redispatches", redispatches)
                    pieces.append(chunk["choices"][0]["delta"].get("content") or "")
                    if len(pieces) == pieces_before:
                        begun.set()
        return "".join(pieces), redispatches

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, number) for number in range(4)]
        assert begun.wait(120)
        end(service.nodes, service.other)
        answers = [answer.result() for answer in streams]
    assert [text for text, _ in answers] == [whole] * 4
    assert sum(redispatches for _, redispatches in answers) > 0

    # What is left serves on, and a new node gets the Decoder that has no place.
    assert service.ask("spread")[0] == whole
    if end is Nodes.freeze:
        service.nodes.kill(service.other)
    service.other = service.nodes.add(num_cpus=1, resources={"decoder": 1})
    assert eventually(service.two_nodes, 120)
    text, figures = service.ask("spread")
    assert text == whole
    assert figures["spills"] > 0
