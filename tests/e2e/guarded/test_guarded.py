"""A service with keys, deadlines and a small budget, driven from outside; one of its models is a shipped one."""

import contextlib
import json
import signal

import openai
import pytest

from serve.keys import new_key
from tests.support.schemathesis_run import check_page
from tests.support.waiting import eventually

HELLO = [{"role": "user", "content": "Tell me about France"}]
#: A request that decodes for as long as it may: greedy, of the endless model. For seconds, since what it asks for
#: leaves one token a step; without, 4,000 of them take half a second.
LONG = {
    "model": "random",
    "messages": [{"role": "user", "content": "Count to ten"}],
    "temperature": 0,
    "pasta": {"mode": "sequential", "drafts": False},
    "logprobs": True,
    "frequency_penalty": 0.1,
    "max_tokens": 4000,
}


def ask(client, **fields):
    body = {"model": "random", "messages": HELLO, "max_tokens": 5, **fields}
    return client.post("/v1/chat/completions", json=body)


@contextlib.contextmanager
def under_way(client, body):
    with contextlib.ExitStack() as stack:

        def begun():
            asked = client.stream("POST", "/v1/chat/completions", json={**body, "stream": True})
            response = stack.enter_context(asked)
            return response if response.status_code == 200 else None

        response = eventually(begun, 20.0)  # what an earlier test has left may hold its place for a moment
        assert response
        lines = response.iter_lines()  # held: the stream is closed when its iterator is gone
        next(lines)
        yield lines


def test_a_shipped_model_answers_openai_s_client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.keys["ann"], max_retries=0) as client:
        answer = client.chat.completions.create(
            model="shipped",
            messages=[{"role": "user", "content": "Tell me about France, Japan and Kenya."}],
            logprobs=True,
            n=2,
            max_tokens=400,
        )
    first, second = answer.choices
    assert "France" in first.message.content
    # Greedy by default: all choices are the same.
    assert first.message.content == second.message.content
    assert first.finish_reason == "stop"
    assert first.pasta["threads"] > 1
    listed = "".join(token.token for token in first.logprobs.content)
    assert listed == first.message.content


def test_keys_do_not_share_what_is_cached(service):
    messages = [{"role": "user", "content": "What is a salt?"}]

    def cached(name):
        with service.client(name) as client:
            return ask(client, messages=messages).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    cached("ann")
    assert (cached("one"), cached("ann") > 0, cached("one") > 0) == (0, True, True)


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/random", "/v1/chat/completions", "/v1/completions"]
)
def test_nothing_is_answered_without_a_key(service, path):
    with service.client(None) as client:
        method = "POST" if "completions" in path else "GET"
        for headers in ({}, {"Authorization": "Bearer sk-pasta-wrong"}):
            response = client.request(method, path, headers=headers, content=b"{")
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_every_request_without_a_key_is_refused_as_the_page_says(service):
    with service.client() as client:
        token = client.post("/tokenize", json={"model": "random", "prompt": "a"}).json()["tokens"][-1]
        page = client.get("/openapi.json").json()
    assert page["paths"]["/v1/models"]["get"]["security"] == [{"HTTPBearer": []}]
    check_page(service.url, "random", token, "--header", f"Authorization: Bearer {service.keys['ann']}")


def test_a_key_made_while_the_service_runs_works_at_once(service):
    service.keys["new"] = new_key(service.file, "new")
    with service.client("new") as client:
        assert client.get("/v1/models").status_code == 200


def test_a_rate_beyond_the_key_s_is_429_and_says_when(service):
    with service.client("slow") as client:
        assert ask(client).status_code == 200
        response = ask(client)
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 60
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_a_key_has_no_more_requests_under_way_than_it_may(service):
    with service.client("one") as client, under_way(client, LONG):
        assert ask(client).status_code == 429
        with (
            pytest.raises(openai.RateLimitError),
            openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.keys["one"], max_retries=0) as other,
        ):
            other.completions.create(model="random", prompt="a")


@pytest.mark.parametrize("streams", [False, True])
def test_beyond_the_budget_a_long_request_is_429_and_a_short_one_finds_room(service, streams):
    with service.client() as client:
        with under_way(client, LONG):
            response = ask(client, **LONG, stream=streams)
            assert response.status_code == 429
            assert 2 <= int(response.headers["retry-after"]) <= 60
            assert response.json()["error"]["code"] == "overloaded"
            assert ask(client, max_tokens=5, stream=streams).status_code == 200
        # Its place is free again when its client is gone. Such an answer may be long, and ends with its first token.
        token = client.post("/tokenize", json={"model": "random", "prompt": "g"}).json()["tokens"][-1]
        short = {"max_tokens": 4000, "stop": "g", "logit_bias": {str(token): 100}}
        assert eventually(lambda: ask(client, **short).status_code == 200, 20.0)


def test_a_deadline_that_passes_is_408(service):
    with service.client() as client:
        late = client.post("/v1/chat/completions", json=LONG, headers={"X-Request-Timeout": "0.05"})
        assert late.status_code == 408
        assert late.json()["error"]["code"] == "timeout"
        wrong = client.post("/v1/chat/completions", json=LONG, headers={"X-Request-Timeout": "soon"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "X-Request-Timeout")


def test_a_deadline_that_passes_on_the_way_is_the_stream_s_last_event(service):
    # The first deadline that lets text through is far before the last of 4,000 tokens.
    events, seconds = [], 0.025
    with service.client() as client:
        while len(events) <= 2:
            seconds *= 2
            headers = {"X-Request-Timeout": str(seconds)}
            answer = client.post("/v1/chat/completions", json={**LONG, "stream": True}, headers=headers)
            events = [line for line in answer.text.splitlines() if line]
    assert '"code":"timeout"' in events[-1]


def test_no_key_is_in_any_log(service):
    for name in service.keys:
        with service.client(name) as client:
            ask(client)
            ask(client, no_such_parameter=service.keys[name])
    files = [
        file
        for path in service.logs
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    ]
    text = b"".join(
        file.read_bytes() for file in files if file.suffix in {"", ".log", ".err", ".out", ".txt"}
    )
    assert b"/v1/chat/completions" in text
    for key in service.keys.values():
        assert key.encode() not in text


def test_the_metrics_of_the_service_are_on_its_port_for_who_has_a_key(service):
    with service.client(None) as stranger:
        assert stranger.get("/metrics").status_code == 401
    with service.client() as client:
        ask(client)
        both = (
            "ray_pasta_requests_total{",
            "ray_pasta_engine_steps_total{",
        )  # of the Gateway, and of the Decoder
        # Ray exports every few seconds.
        page = eventually(
            lambda: all(name in (text := client.get("/metrics").text) for name in both) and text
        )
        assert page
        assert {line.split("_")[1] for line in page.splitlines() if line[0] != "#"} == {"pasta"}


def test_a_page_of_a_named_origin_may_use_the_api(service):
    page = {"Origin": "https://app.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with service.client(None) as browser:
        assert browser.options("/v1/chat/completions", headers=page | asked).status_code == 200
    with service.client(headers=page) as client:
        assert ask(client).headers["access-control-allow-origin"] == page["Origin"]


def test_an_answer_that_outlasts_the_drain_ends_with_an_error(service):
    """The last one: it ends the service, of which clients only saw that the connection was closed."""
    with service.client() as client, under_way(client, LONG) as lines:
        service.run.process.send_signal(signal.SIGTERM)
        *_, last = (line for line in lines if line)
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("service_unavailable", "server_error")
    assert error["message"].startswith("The service stopped before the answer was whole")
    assert service.run.process.wait(60) == 128 + signal.SIGTERM
    assert "Traceback" not in service.run.output
