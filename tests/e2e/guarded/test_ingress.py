"""Without Ray Serve's own proxy (``front.proxy``): HAProxy, or nothing, between clients and the Gateway."""

import json
import os
import signal

import httpx

from tests.e2e.guarded.conftest import Guarded
from tests.e2e.guarded.test_guarded import LONG
from tests.support.waiting import eventually

BODY = {
    "model": "random",
    "messages": [{"role": "user", "content": "Count"}],
    "pasta": {"mode": "sequential", "drafts": False},
}


def active(service: Guarded) -> int:
    with service.client() as http:
        decoders = http.get("/ready").raise_for_status().json()["decoders"]
    return sum(decoder["active"] + decoder["waiting"] for decoder in decoders)


def gateway(service: Guarded) -> int:
    with service.client() as http:
        pid: int = http.get("/ready").raise_for_status().json()["gateway"]["pid"]
    return pid


def test_an_answer_streams_and_stops_when_its_client_leaves(reached: Guarded) -> None:
    with (
        reached.client() as http,
        http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as response,
    ):
        lines = response.iter_lines()
        assert response.status_code == 200
        first = [next(lines) for _ in range(6)]
        assert json.loads(first[2].removeprefix("data: "))["choices"][0]["delta"]["content"]
        assert active(reached) == 1, "the text arrives before the answer has ended"
    assert eventually(lambda: active(reached) == 0, 30.0)


def test_a_large_request_and_a_whole_answer_pass(reached: Guarded) -> None:
    with reached.client() as http:
        whole = http.post(
            "/v1/chat/completions", json=BODY | {"max_tokens": 100, "logprobs": True, "top_logprobs": 20}
        )
        refused = http.post(
            "/v1/chat/completions", content=b" " * 300_000 + json.dumps(BODY | {"n": 99}).encode()
        )
    assert len(whole.content) > 64 * 1024
    assert len(whole.json()["choices"][0]["logprobs"]["content"]) == 100
    assert refused.status_code == 400
    assert "n" in refused.json()["error"]["message"]


def test_errors_keep_their_status_and_headers(reached: Guarded) -> None:
    with reached.client(None) as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 401
    with reached.client("rare") as http:
        answers = [http.post("/v1/chat/completions", json=BODY | {"max_tokens": 1}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert int(answers[1].headers["retry-after"]) > 0
    with reached.client() as http:
        late = http.post("/v1/chat/completions", json=LONG, headers={"X-Request-Timeout": "0.2"})
    assert (late.status_code, late.headers["x-should-retry"]) == (408, "false")


def test_a_gateway_that_takes_a_dead_one_s_place_is_at_the_same_address(reached: Guarded) -> None:
    before = gateway(reached)
    os.kill(before, signal.SIGKILL)

    def again() -> bool:
        try:
            return gateway(reached) != before
        except (httpx.HTTPError, LookupError, ValueError):
            return False

    assert eventually(again, 120.0)
    with reached.client() as http:
        answer = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3}).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 3
