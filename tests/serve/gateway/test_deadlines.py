"""Slow clients meet the Gateway's deadlines through a real HTTP server with the proxy's middleware."""

import asyncio
import json
import time

import httpx
import pytest

from serve.gateway import proxy
from serve.wire import Accepted, Delta, Finished, TextToken

BODY = json.dumps({"model": "m", "prompt": "a" * 1000}).encode()


def head(length, path="/v1/completions"):
    lines = f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", "", ""
    return "\r\n".join(lines).encode()


async def status(reader):
    """The status of the answer that comes next."""
    return int((await reader.readline()).split()[1])


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [0, 1, 900])
def test_a_small_body_that_does_not_arrive_in_time_is_408_and_its_connection_ends(served, arrived):
    async def scenario():
        async with served({"body_timeout_s": 0.3}) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            begun = time.monotonic()
            writer.write(head(len(BODY)) + BODY[:arrived])
            answered = await status(reader), time.monotonic() - begun
            await reader.read()  # to the end of the connection
            writer.close()
            return answered

    code, seconds = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert code == 408
    assert seconds >= 0.3


def test_a_slow_upload_takes_a_place_before_it_has_arrived(served):
    async def scenario():
        async with served({"max_ongoing_requests": 1, "body_timeout_s": 20.0}) as port:
            _, slow = await asyncio.open_connection("127.0.0.1", port)
            slow.write(head(len(BODY)) + BODY[:10])
            for _ in range(200):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head(2) + b"{}")
                found = await status(reader)
                writer.close()
                if found == 429:
                    break
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient() as http:
                health = await http.get(f"http://127.0.0.1:{port}/health")
            slow.close()
            return found, health.status_code

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == (429, 200)


@pytest.mark.slow
def test_a_client_that_leaves_while_it_uploads_is_no_failure(served, caplog):
    async def scenario():
        async with served({"max_ongoing_requests": 1, "body_timeout_s": 20.0}) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(len(BODY)) + BODY[:10])
            await asyncio.sleep(0.3)  # longer than the proxy's middleware waits for a body
            writer.close()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                for _ in range(200):
                    response = await http.post("/v1/completions", content=b"{}")
                    if response.status_code != 429:
                        return response.status_code
                    await asyncio.sleep(0.01)
            return None

    with caplog.at_level("ERROR"):
        assert asyncio.run(asyncio.wait_for(scenario(), 30)) == 400
    assert not caplog.records


TOP = tuple((f"token {n}", -float(n)) for n in range(20))
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20}


def answer(tokens):
    """An Interpreter's updates: an answer of so many tokens with their 20 likeliest each."""
    deltas = [[Delta("x" * 8, logprobs=[TextToken("token 0", -0.5, TOP)] * 8)] for _ in range(tokens // 8)]
    return [[Accepted(3)], *deltas, [Finished("stop", 3, tokens, {})]]


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "whole"), [(8, True), (4000, False)])
def test_a_large_answer_is_sent_in_parts_and_a_small_one_at_once(served, tokens, whole):
    async def scenario():
        async with served({}, answer=answer(tokens)) as port, httpx.AsyncClient(timeout=60) as http:
            return await http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=CHAT)

    response = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert response.headers["content-type"] == "application/json"
    assert ("content-length" in response.headers) == whole
    (choice,) = response.json()["choices"]
    assert choice["message"]["content"] == "x" * tokens
    assert len(choice["logprobs"]["content"]) == tokens


@pytest.mark.slow
def test_a_large_answer_that_nobody_reads_gives_its_place_back(served, monkeypatch):
    monkeypatch.setattr(proxy, "LATER_S", 0.0)
    body = json.dumps(CHAT).encode()

    async def scenario():
        config = {"max_ongoing_requests": 1, "write_timeout_s": 0.2}
        async with served(config, answer=answer(12_000)) as port, httpx.AsyncClient() as http:
            # It reads 2 kB; the network's buffers take some megabytes, the answer has 15.
            _, slow = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            slow.write(head(len(body), "/v1/chat/completions") + body)
            seen = []
            until = time.monotonic() + 20
            while seen[-1:] != [400] or 429 not in seen:
                assert time.monotonic() < until, seen
                response = await http.post(f"http://127.0.0.1:{port}/v1/completions", content=b"{}")
                seen.append(response.status_code)
                await asyncio.sleep(0.02)
            slow.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
