"""Without Ray Serve's own proxy (``front.proxy``): HAProxy, or nothing, between clients and the Gateway."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from serve.keys import new_key
from tests.support.service import Service, save_tiny_model, service_config, serving
from tests.support.waiting import eventually

BODY = {
    "model": "pasta-atlas",
    "messages": [{"role": "user", "content": "Count"}],
    "pasta": {"mode": "sequential", "drafts": False},
}


@dataclass(frozen=True)
class Reached:
    """A running service, and its keys."""

    run: Service
    keys: dict[str, str]

    def client(self, key: str | None = "ann") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.keys[key]}"} if key else {}
        return httpx.Client(base_url=self.run.url, headers=headers, timeout=60)

    def active(self) -> int:
        with self.client() as http:
            decoders = http.get("/ready").raise_for_status().json()["decoders"]
        return sum(decoder["active"] + decoder["waiting"] for decoder in decoders)

    def gateway(self) -> int:
        with self.client() as http:
            pid: int = http.get("/ready").raise_for_status().json()["gateway"]["pid"]
        return pid


@pytest.fixture(scope="module", params=["haproxy", "none"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp(request.param)
    keys = {"ann": new_key(folder / "keys.yaml", "ann")}
    keys["slow"] = new_key(folder / "keys.yaml", "slow", requests_per_minute=1)
    config = service_config(
        folder,
        save_tiny_model(folder / "model", endless=True),
        front={"proxy": request.param},
        decoder={"num_replicas": 1},
        keys={"file": str(folder / "keys.yaml")},
    )
    # Sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="p", ignore_cleanup_errors=True) as short:
        with serving(config, folder / "log", TMPDIR=short) as run:
            yield Reached(run, keys)
        assert run.leaves_nothing()


def test_an_answer_streams_and_stops_when_its_client_leaves(service: Reached) -> None:
    with (
        service.client() as http,
        http.stream(
            "POST", "/v1/chat/completions", json=BODY | {"stream": True, "max_tokens": 4000}
        ) as response,
    ):
        lines = response.iter_lines()
        assert response.status_code == 200
        first = [next(lines) for _ in range(6)]
        assert json.loads(first[2].removeprefix("data: "))["choices"][0]["delta"]["content"]
        assert service.active() == 1, "the text arrives before the answer has ended"
    assert eventually(lambda: service.active() == 0, 30.0)


def test_a_large_request_and_a_whole_answer_pass(service: Reached) -> None:
    with service.client() as http:
        whole = http.post(
            "/v1/chat/completions", json=BODY | {"max_tokens": 900, "logprobs": True, "top_logprobs": 20}
        )
        refused = http.post(
            "/v1/chat/completions", content=b" " * 300_000 + json.dumps(BODY | {"n": 99}).encode()
        )
    assert len(whole.content) > 64 * 1024
    assert len(whole.json()["choices"][0]["logprobs"]["content"]) == 900
    assert refused.status_code == 400
    assert "n" in refused.json()["error"]["message"]


def test_errors_keep_their_status_and_headers(service: Reached) -> None:
    with service.client(None) as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 401
    with service.client("slow") as http:
        answers = [http.post("/v1/chat/completions", json=BODY | {"max_tokens": 1}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert int(answers[1].headers["retry-after"]) > 0
    with service.client() as http:
        late = http.post(
            "/v1/chat/completions", json=BODY | {"max_tokens": 4000}, headers={"X-Request-Timeout": "0.2"}
        )
    assert (late.status_code, late.headers["x-should-retry"]) == (408, "false")


def test_a_gateway_that_takes_a_dead_one_s_place_is_at_the_same_address(service: Reached) -> None:
    before = service.gateway()
    os.kill(before, signal.SIGKILL)

    def again() -> bool:
        try:
            return service.gateway() != before
        except (httpx.HTTPError, LookupError, ValueError):
            return False

    assert eventually(again, 120.0)
    with service.client() as http:
        answer = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3}).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 3
