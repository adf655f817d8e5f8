"""Replicas that die and clients that leave: real Ray Serve, the shipped model, two decoders."""

import concurrent.futures
import json
import os
import signal

import httpx
import pytest

from tests.e2e.shipped.conftest import LEASE_S
from tests.support.waiting import eventually

#: The first has a long answer; how many things a model describes of those that no prompt names is its choice.
PROMPTS = [
    "Describe Mercury, Venus, Earth, Mars, Jupiter and Saturn.",
    "Which countries border France?",
    "Describe Mars, Venus and Saturn.",
]


def body(prompt, placement="spread", **fields):
    messages = [{"role": "user", "content": prompt}]
    # Random promises would make chunks where the model makes none: it is left to itself.
    request = {"model": "pasta-atlas", "messages": messages, "temperature": 0}
    return {**request, "pasta": {"placement": placement}, **fields}


def ask(http, prompt, placement="spread", **fields):
    answer = (
        http.post("/v1/chat/completions", json=body(prompt, placement, **fields)).raise_for_status().json()
    )
    return answer["choices"][0]["message"]["content"], answer["pasta"]


def decoders(http):
    return http.get("/ready").raise_for_status().json()["decoders"]


def both_up(http):
    return eventually(lambda: len(decoders(http)) == 2)


def replica(service, deployment):
    """The process of a deployment's only replica."""
    found = [p for p in service.descendants() if f":{deployment}" in " ".join(p.cmdline())]
    assert found, deployment
    return found[0]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_an_answer_is_the_same_wherever_its_chunks_are_decoded(http, prompt):
    alone, figures = ask(http, prompt, "local")
    assert figures["spills"] == 0
    assert ask(http, prompt, "auto")[0] == alone
    text, figures = ask(http, prompt, "spread")
    assert text == alone
    assert figures["spills"] > 0 or figures["threads"] == 1


def test_twelve_calls_from_each_of_six_requests_at_once_all_arrive(http):
    """Each answer's chunks are calls to pinned replicas, made while one request is handled."""
    alone = [ask(http, prompt, "local")[0] for prompt in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for _ in range(4):
            assert [text for text, _ in pool.map(lambda p: ask(http, p), PROMPTS * 2)] == alone * 2


#: An answer that is over in 60 ms outlives nobody: with these it takes a second.
LONG = {"ignore_eos": True, "max_tokens": 1800, "logprobs": True}


@pytest.fixture(scope="module")
def whole(service):
    """The first prompt's long answer on one Decoder."""
    with httpx.Client(base_url=service.url, timeout=60) as http:
        return ask(http, PROMPTS[0], "local", **LONG)[0]


@pytest.mark.parametrize("victim", ["home", "other", "any"])
def test_an_answer_survives_its_decoders(http, whole, victim):
    """Of the two, the one with more lanes holds the main thread and some chunks, the other one chunks alone."""
    killed = False
    assert both_up(http)
    pieces, figures = [], {}
    asked = body(PROMPTS[0], stream=True, **LONG)
    with http.stream("POST", "/v1/chat/completions", json=asked) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            figures = chunk.get("pasta", figures)
            pieces.append(chunk["choices"][0]["delta"].get("content") or "")
            if len(pieces) == 4 and not killed:
                killed = True
                busy = sorted(decoders(http), key=lambda d: d["active"])
                os.kill(busy[0 if victim == "other" else -1]["pid"], signal.SIGKILL)
    assert killed
    assert "".join(pieces) == whole
    assert figures["redispatches"] > 0 or victim == "other"
    assert both_up(http)


def test_answers_that_take_longer_than_a_lease_are_not_given_up(http):
    """More and more of them at once, until one takes longer than a lease that nobody renews and the tenth on top."""
    fields = {"temperature": 1.0, "n": 8, "max_tokens": 300}

    def total_s(seed):
        requests = body(PROMPTS[0], "spread", seed=seed, **fields)
        answer = http.post("/v1/chat/completions", json=requests).raise_for_status().json()
        assert all(choice["finish_reason"] in {"stop", "length"} for choice in answer["choices"])
        assert all(choice["pasta"]["redispatches"] == 0 for choice in answer["choices"])
        return max(choice["pasta"]["timings"]["total_ms"] for choice in answer["choices"]) / 1000

    reaped = sum(d["reaped"] for d in decoders(http))
    with concurrent.futures.ThreadPoolExecutor(128) as pool:
        for at_once in (4, 8, 16, 32, 64, 128):  # eight take three seconds on two cores
            if max(pool.map(total_s, range(at_once))) > 1.5 * LEASE_S:
                break
        else:
            raise AssertionError("no answer took long enough to tell")
    assert sum(d["reaped"] for d in decoders(http)) == reaped


def test_a_client_that_leaves_stops_every_thread_everywhere(http):
    with http.stream("POST", "/v1/chat/completions", json=body(PROMPTS[0], stream=True)) as response:
        next(response.iter_lines())
    assert eventually(lambda: not sum(d["active"] + d["waiting"] + d["open"] for d in decoders(http)), 20.0)


@pytest.mark.parametrize("deployment", ["Interpreter", "Gateway"])
def test_without_its_interpreter_or_gateway_a_request_fails_fast_and_the_next_ones_work(
    service, http, deployment
):
    whole, _ = ask(http, PROMPTS[0])
    with http.stream("POST", "/v1/chat/completions", json=body(PROMPTS[0], stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(replica(service, deployment).pid, signal.SIGKILL)
        try:
            rest = "".join(lines)
        except httpx.HTTPError:
            rest = ""
    assert "service_unavailable" in rest or deployment == "Gateway" or "[DONE]" in rest
    assert eventually(lambda: ask(http, PROMPTS[0])[0] == whole)
    # What the lost one held is reaped.
    assert eventually(lambda: not sum(d["active"] + d["open"] for d in decoders(http)), 20.0)
