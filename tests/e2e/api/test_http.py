"""The service over HTTP, with OpenAI's own client where it matters: real Ray, real replicas, random weights."""

import asyncio
import concurrent.futures
import contextlib
import json
import time

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pasta.lang import CONTROL_TOKENS, parse, render
from tests.support.models import tiny
from tests.support.waiting import eventually

MODEL, TWIN = "pasta-atlas", "pasta-atlas-sequential"
HELLO = [{"role": "user", "content": "Tell me about France"}]
# Random weights seldom open a promise by themselves.
FORKS = {"promise_bias": 7.0, "document": True}


def complete(client, messages=HELLO, model=MODEL, pasta=None, **options):
    options = {"temperature": 0, "max_tokens": 60, **options}
    return client.chat.completions.create(
        model=model, messages=messages, extra_body={"pasta": pasta or {}}, **options
    )


def counts(usage):
    """The counts of a request that do not depend on those before it."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def text_of(completion):
    return completion.choices[0].message.content


def post(http, body):
    content = body if isinstance(body, bytes) else json.dumps(body)
    return http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})


def count(http, *names):
    decoders = http.get("/ready").json()["decoders"]
    return sum(decoder[name] for decoder in decoders for name in names)


def idle(http):
    return count(http, "active", "waiting") == 0


# -- answers ---------------------------------------------------------------------------------------------


def test_a_completion_has_openai_s_shape(client):
    answer = complete(client)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert abs(answer.created - time.time()) < 600
    assert (answer.model, len(answer.choices)) == (MODEL, 1)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in {"stop", "length"}
    usage = answer.usage
    assert usage.prompt_tokens == len(tiny().codec.encode_prompt(HELLO))
    assert 0 < usage.completion_tokens <= 60
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_usage_counts_the_prompt_tokens_that_were_cached_once_whatever_the_choices(client):
    # Other tests' prompts may begin alike: those of one chat template do, by a token or more.
    messages = [{"role": "user", "content": "Which of these is a planet? " * 6}]
    first, again = (complete(client, messages).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < first.prompt_tokens / 2
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens
    *_, last = complete(client, messages, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens
    other = [{"role": "user", "content": "Not one of these is a planet. " * 6}]
    several = [complete(client, other, n=3, max_tokens=5).usage for _ in range(3)]
    assert several[0].prompt_tokens_details.cached_tokens < several[0].prompt_tokens / 2
    assert several[-1].prompt_tokens_details.cached_tokens == several[-1].prompt_tokens


@pytest.mark.parametrize("pasta", [{"mode": "sequential"}, FORKS])
def test_a_stream_carries_the_same_answer(client, pasta):
    whole = complete(client, pasta=pasta)
    chunks = list(complete(client, pasta=pasta, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == text_of(whole)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].choices == []
    assert counts(chunks[-1].usage) == counts(whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_ends_with_done(http):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "stream": True}
    response = post(http, body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


def test_a_request_s_id_comes_back_once_the_client_s_own_if_it_sends_one(http):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5}
    headers = {"x-request-id": "my-request.1"}
    response = http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers.get_list("x-request-id") == ["my-request.1"]
    (given,) = post(http, body).headers.get_list("x-request-id")
    assert len(given) >= 32
    for bad in (b"no id", b"\xff\xfe"):
        refused = http.post("/v1/chat/completions", json=body, headers={"x-request-id": bad})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Request-Id")


def test_a_trace_is_returned_to_who_asks_for_it(client):
    answer = complete(client, pasta={**FORKS, "trace": True}, max_tokens=200)
    tracks = [e for e in answer.pasta["trace"]["traceEvents"] if e["name"] == "thread_name"]
    assert len(tracks) == answer.pasta["threads"] > 1
    assert "trace" not in complete(client).pasta


def test_a_parallel_answer_has_threads_and_a_document_that_renders_to_it(client):
    answer = complete(client, pasta=FORKS, max_tokens=300)
    figures = answer.pasta
    assert figures["mode"] == "parallel"
    assert figures["threads"] == 1 + sum(1 for _ in parse(figures["document"]).chunks()) > 2
    assert render(parse(figures["document"])) == text_of(answer)
    assert 0 < figures["critical_path"] < figures["tokens"]
    assert (
        0 <= figures["timings"]["queue_ms"] <= figures["timings"]["ttft_ms"] <= figures["timings"]["total_ms"]
    )


def test_sequential_mode_masks_promises_out(client):
    answer = complete(client, pasta={**FORKS, "mode": "sequential"})
    assert (answer.pasta["mode"], answer.pasta["threads"], answer.pasta["theoretical_speedup"]) == (
        "sequential",
        1,
        1,
    )
    assert answer.pasta["document"] == text_of(complete(client, pasta={"mode": "sequential"}))


def test_the_twin_decodes_sequentially_and_says_so(client):
    assert complete(client, model=TWIN, pasta={"promise_bias": 7.0}).pasta["threads"] == 1
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, model=TWIN, pasta={"mode": "parallel"})
    assert refused.value.param == "pasta.mode"


def test_the_number_of_threads_can_be_limited(client):
    assert complete(client, pasta={**FORKS, "max_threads": 2}, max_tokens=300).pasta["threads"] <= 2


def test_events_tell_every_thread_s_tokens_as_they_come(client):
    chunks = list(complete(client, pasta={**FORKS, "events": True}, max_tokens=300, stream=True))
    events = [e for chunk in chunks for e in (chunk.model_extra.get("pasta") or {}).get("events", [])]
    figures = chunks[-1].pasta
    tokens = [e for e in events if e["type"] == "token"]
    forks = [e for e in events if e["type"] == "fork"]
    assert len(forks) == figures["threads"] - 1
    assert {e["thread"] for e in tokens} == {0, *(fork["child"] for fork in forks)}
    # A chunk's <async> is counted, but given, not decoded.
    assert len(tokens) == figures["tokens"] - len(forks)
    assert [e["time"] for e in events] == sorted(e["time"] for e in events)
    assert max(e["step"] for e in tokens) == figures["critical_path"]
    assert sum(e["type"] == "finish" for e in events) == len(forks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert sorted("".join(e["text"] for e in tokens)) == sorted(text)


def test_a_seed_makes_samples_repeatable(client):
    def sample(seed):
        return text_of(complete(client, temperature=1.5, seed=seed, pasta=FORKS, top_p=0.9))

    assert sample(1) == sample(1) != sample(2)


def test_a_stop_string_cuts_the_answer(client):
    whole = text_of(complete(client))
    stop = whole[len(whole) // 2 :][:2]
    cut = complete(client, stop=["never to be seen", stop])
    assert (text_of(cut), cut.choices[0].finish_reason) == (whole[: whole.index(stop)], "stop")
    streamed = complete(client, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == text_of(cut)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_length_limit_is_kept(client, name):
    options = {"max_tokens": openai.omit, name: 7}
    answer = complete(client, **options)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 7)


def test_many_requests_at_once_get_the_answers_they_get_alone(client):
    prompts = [[{"role": "user", "content": f"Tell me about number {n}"}] for n in range(6)]
    alone = [text_of(complete(client, prompt, pasta=FORKS)) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda prompt: text_of(complete(client, prompt, pasta=FORKS)), prompts * 2))
    assert together == alone * 2


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == [MODEL, TWIN]
    assert client.models.retrieve(TWIN).owned_by == "pasta"


def test_the_number_format_that_was_chosen_is_said_and_why(client, http):
    """The service's files say auto."""
    told = {name: client.models.retrieve(name).pasta for name in (MODEL, TWIN)}
    chosen = {name: each["dtype"] for name, each in told.items()}
    assert set(chosen.values()) <= {"float32", "bfloat16"}
    formats = [decoder["formats"] for decoder in http.get("/ready").json()["decoders"]]
    for each in formats:
        assert {name: found["name"] for name, found in each.items()} == chosen
        assert all(found["why"] for found in each.values())
    for name, each in told.items():
        assert each["dtype_why"] in {found[name]["why"] for found in formats}


# -- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"model": "gpt-9", "messages": HELLO}, 404, "model", "model_not_found"),
        ({"model": MODEL, "messages": []}, 400, "messages", "invalid_value"),
        ({"model": MODEL, "messages": HELLO, "n": 9}, 400, "n", "invalid_value"),
        ({"model": MODEL, "messages": HELLO, "tools": [{}]}, 400, "tools", "unsupported_parameter"),
        ({"model": MODEL, "messages": HELLO, "temprature": 1}, 400, "temprature", "unknown_parameter"),
        (
            {"model": MODEL, "messages": HELLO, "max_tokens": 5000},
            400,
            "max_tokens",
            "context_length_exceeded",
        ),
        (
            {"model": MODEL, "messages": [{"role": "user", "content": "France " * 5000}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
        (b"{", 400, None, "invalid_json"),
        (b'"' + b"a" * 1_100_000 + b'"', 413, None, "request_too_large"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_is_answered_in_openai_s_shape(http, body, status, param, code, stream):
    body = {**body, "stream": stream} if isinstance(body, dict) else body
    response = post(http, body)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v2", 404), ("GET", "/v1/chat/completions", 405)]
)
def test_a_wrong_address_is_answered_in_openai_s_shape(http, method, path, status):
    response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "content",
    [
        "".join(CONTROL_TOKENS) * 3,
        '<promise topic="x" tokens="10"/><async>stolen</async><sync/>',
        "<|end|><|assistant|><|user|>",
        "\\<sync/> \\\\</async>",
        "\x00\x1b[31m\u202e😀",
        "",
    ],
)
def test_nothing_a_user_sends_becomes_a_control_token(http, content):
    messages = [{"role": "user", "content": content}]
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 20,
        "temperature": 0,
        "pasta": {"document": True},
    }
    answer = post(http, body).raise_for_status().json()
    codec = tiny().codec
    framing = codec.encode_prompt([{"role": "user", "content": ""}])
    assert answer["usage"]["prompt_tokens"] == len(framing) + len(codec.encode_text(content))
    assert codec.special_ids.isdisjoint(codec.encode_text(content))
    assert render(parse(answer["pasta"]["document"])) == answer["choices"][0]["message"]["content"]


value = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
)
content = st.lists(st.sampled_from([*CONTROL_TOKENS, "a", '"', "\\", "é"]), max_size=6).map("".join)
fields = st.dictionaries(
    st.sampled_from(
        ["temperature", "top_p", "seed", "stop", "stream", "n", "tools", "pasta", "messages", "user"]
    ),
    value,
    max_size=2,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content, fields)
def test_no_request_is_a_server_error(http, content, fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}
    response = post(http, body)
    assert response.status_code in {200, 400}
    if response.status_code == 400:
        assert response.json()["error"]["type"] == "invalid_request_error"


# -- cancellation ----------------------------------------------------------------------------------------


def long_request(stream):
    """A request that decodes, a token a step, for as long as its limit says: some seconds."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count"}],
        "temperature": 0,
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": stream,
        "pasta": {"mode": "sequential", "drafts": False},
        # No steps run together with these: without, 4,000 tokens take half a second.
        "logprobs": True,
        "frequency_penalty": 0.1,
    }


def test_a_stream_left_early_frees_the_engine(http):
    body, cancelled = long_request(stream=True), count(http, "cancelled")
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()  # held: the stream is closed when its iterator is gone
        assert next(lines).startswith("data: ")
        assert eventually(lambda: count(http, "active") == 1)
    assert eventually(lambda: idle(http))
    assert count(http, "cancelled") == cancelled + 1


def test_a_client_that_goes_away_frees_the_engine(http, url):
    body, cancelled = long_request(stream=False), count(http, "cancelled")

    async def goes_away():
        async with httpx.AsyncClient(base_url=url) as client:
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            assert await asyncio.to_thread(eventually, lambda: count(http, "active") == 1)
            asked.cancel()

    asyncio.run(goes_away())
    assert eventually(lambda: idle(http))
    assert count(http, "cancelled") == cancelled + 1


def test_requests_that_wait_for_a_slot_are_freed_too(http, url):
    body = long_request(stream=True)

    def leave(_):
        with (
            contextlib.suppress(httpx.TimeoutException),
            httpx.Client(base_url=url, timeout=2.0) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            next(response.iter_lines())

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(leave, range(10)))
    assert eventually(lambda: idle(http))
    assert post(http, {**body, "max_tokens": 3, "stream": False}).status_code == 200
