"""The client of OpenAI-compatible endpoints, against a server that misbehaves in every way it knows."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from pasta.data.endpoint import Endpoint, EndpointError, EndpointSection, all_of, retry_after_s
from pasta.data.replies import Tokens
from pasta.errors import UserError
from tests.support.endpoint import completion, endpoint_server

ASK = [{"role": "user", "content": "Which one?"}]


def section(url: str, **values) -> EndpointSection:
    return EndpointSection(
        **{"base_url": url, "model": "judge", "backoff_s": 0.01, "retries": 2, **values}  # type: ignore[arg-type]
    )


def ask(endpoint: Endpoint, times: int = 1, max_tokens: int = 4, **options):
    async def run():
        return await all_of(endpoint.chat(ASK, max_tokens=max_tokens, **options) for _ in range(times))

    return asyncio.run(run())


def test_an_answer_comes_with_its_log_probabilities_and_is_paid_for():
    with endpoint_server(lambda body, _: completion("B", {"B": -0.2, "A": -1.7})) as server:
        prices = {"price_read": 1.0, "price_written": 10.0}
        endpoint = Endpoint(section(server.url, **prices, extra_body={"top_k": 3}), "secret")
        (reply,) = ask(endpoint, logprobs=True, top_logprobs=5)
    assert reply.text == "B"
    assert reply.alternatives[0] == {"B": -0.2, "A": -1.7}
    assert (endpoint.usage.requests, endpoint.usage.prompt_tokens, endpoint.usage.completion_tokens) == (
        1,
        7,
        1,
    )
    assert endpoint.usage.cost == pytest.approx(7e-6 + 1e-5)
    (sent,) = server.requests
    assert sent["authorization"] == "Bearer secret"
    assert sent["body"]["top_k"] == 3
    assert sent["body"]["temperature"] == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        (429, {"error": {"message": "slow down"}}),
        (500, {"error": {"message": "boom"}}),
        (200, "<html>welcome</html>"),
        (200, b"{"),
        (200, {"choices": []}),
        (200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": None}}]}),
        (200, {"answer": "B"}),
        (200, b"[" * 100_000),
        None,  # the connection is closed without a word
    ],
)
def test_what_may_pass_is_tried_again(bad):
    with endpoint_server(lambda _, number: bad if number < 2 else completion("A")) as server:
        endpoint = Endpoint(section(server.url), None)
        (reply,) = ask(endpoint)
    assert reply.text == "A"
    assert endpoint.usage.retries == 2
    assert endpoint.usage.requests == 1


def test_a_reply_that_cannot_be_read_is_paid_for_all_the_same():
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
    bad = (200, {"choices": [], "usage": usage})
    with endpoint_server(lambda _, number: bad if number < 2 else completion("A")) as server:
        endpoint = Endpoint(section(server.url, price_read=1.0, price_written=10.0), None)
        (reply,) = ask(endpoint)
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 1)
    assert reply.wasted == Tokens(60, 10)
    assert (endpoint.usage.prompt_tokens, endpoint.usage.completion_tokens) == (67, 11)
    assert endpoint.usage.cost == pytest.approx(67e-6 + 11e-5)


@pytest.mark.parametrize("count", [b"1e999", b'"many"'])
def test_a_count_of_tokens_that_is_no_number_costs_no_reply(count):
    body = (
        json.dumps(completion("A")[1]).encode().replace(b'"prompt_tokens": 7', b'"prompt_tokens": ' + count)
    )
    with endpoint_server(lambda *_: (200, body)) as server:
        (reply,) = ask(Endpoint(section(server.url, retries=0), None))
    assert reply.text == "A"


@pytest.mark.parametrize("count", [-5, 10**400], ids=["negative", "huge"])
def test_a_count_of_tokens_that_no_answer_takes_is_none(count):
    usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 8}
    with endpoint_server(lambda *_: (200, {**completion("A")[1], "usage": usage})) as server:
        (reply,) = ask(Endpoint(section(server.url, retries=0), None))
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 0)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_that_was_cut_before_its_first_word_is_empty_and_paid_for_once(reason):
    cut = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": None}}
    with endpoint_server(lambda *_: (200, {**completion("")[1], "choices": [cut]})) as server:
        endpoint = Endpoint(section(server.url), None)
        (reply,) = ask(endpoint)
    assert reply.text == ""
    assert len(server.requests) == endpoint.usage.requests == 1


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ((429, {"error": {"message": "slow down"}}), "HTTP 429: slow down, 3 tries in a row"),
        ((503, "down for repairs"), "HTTP 503: down for repairs, 3 tries"),
        ((200, "<html>"), "no chat completion but '<html>', 3 tries"),
        (
            (200, {"error": {"message": "provider down"}}),
            "no chat completion: it says 'provider down', 3 tries",
        ),
        (
            (307, {}, {"Location": "/v1/chat/completions"}),
            "Connection error (Exceeded maximum allowed redirects.), 3",
        ),
    ],
)
def test_what_does_not_pass_ends_in_one_line(bad, expected):
    with (
        endpoint_server(lambda *_: bad) as server,
        pytest.raises(EndpointError) as error,
    ):
        ask(Endpoint(section(server.url), None))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert server.url in str(error.value)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, {"error": {"message": "bad key sk-123"}}, "refused the key in JUDGE_KEY (HTTP 401); check it"),
        (403, {}, "refused the key in JUDGE_KEY (HTTP 403)"),
        (404, {"error": {"message": "no such model"}}, "model 'judge' (HTTP 404: no such model)"),
        (429, {"error": {"message": "no money", "code": "insufficient_quota"}}, "quota is used up"),
    ],
)
def test_what_cannot_pass_is_asked_once(status, body, expected):
    with endpoint_server(lambda *_: (status, body)) as server, pytest.raises(EndpointError) as error:
        ask(Endpoint(section(server.url, api_key_env="JUDGE_KEY"), "sk-123"))
    assert expected in str(error.value)
    assert "sk-123" not in str(error.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 500])
def test_half_a_character_in_an_error_can_be_written_to_a_file(status: int):
    bad = (status, {"error": {"message": "no tea \ud83c"}})
    with endpoint_server(lambda *_: bad) as server, pytest.raises(EndpointError) as error:
        ask(Endpoint(section(server.url), None))
    assert "no tea \ufffd" in str(error.value).encode().decode()


def test_nobody_there_is_an_error_that_names_the_address():
    with endpoint_server(lambda *_: None) as server:
        url = server.url
    with pytest.raises(EndpointError, match=f"endpoint {url}: .*3 tries"):
        ask(Endpoint(section(url), None))


def test_nobody_there_by_way_of_a_proxy_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:1")
    url = "http://127.0.0.1:2/v1"
    with pytest.raises(
        EndpointError, match=r"\(requests take the environment's proxy; export no_proxy=127\.0\.0\.1 if"
    ) as caught:
        ask(Endpoint(section(url), None))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(EndpointError, match=r"Connection error \([^()]*\), 3 tries"):
        ask(Endpoint(section(url), None))


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "ftp://127.0.0.1:1", "http://[::1"])
def test_a_proxy_that_the_client_cannot_take_is_one_line(monkeypatch, proxy):
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(
        UserError, match=r"requests cannot take the environment's proxy \(.*; expected http_proxy"
    ):
        Endpoint(section("http://127.0.0.1:2/v1"), None)


def test_a_silent_endpoint_is_given_up():
    with (
        endpoint_server(lambda *_: time.sleep(1.0)) as server,
        pytest.raises(EndpointError, match=r"no answer within 0\.2 s, asked once"),
    ):
        ask(Endpoint(section(server.url, timeout_s=0.2, retries=0), None))


def test_an_answer_that_comes_by_a_space_now_and_then_is_given_up_too():
    """As proxies send them to keep a connection open: the client's limit is on each, and it waited for ever."""

    def spaces():
        while True:
            time.sleep(0.05)
            yield b" "

    with (
        endpoint_server(lambda *_: (200, spaces())) as server,
        pytest.raises(EndpointError, match=r"no answer within 0\.2 s, asked once"),
    ):
        ask(Endpoint(section(server.url, timeout_s=0.2, retries=0), None))


def why_silent(endpoint: Endpoint) -> str | None:
    return asyncio.run(endpoint.why_silent())


def test_an_endpoint_that_answers_a_trivial_question_is_not_silent():
    with endpoint_server(lambda _, number: completion("yes")) as server:
        assert why_silent(Endpoint(section(server.url), None)) is None
    (sent,) = server.requests
    assert sent["body"]["max_tokens"] == 16


def test_whether_an_endpoint_answers_is_tried_once():
    with endpoint_server(lambda _, number: (503, {"error": {"message": "loading"}})) as server:
        assert why_silent(Endpoint(section(server.url), None)) == "HTTP 503: loading"
    assert len(server.requests) == 1


def test_an_endpoint_that_refuses_a_trivial_question_is_an_error():
    with (
        endpoint_server(lambda _, number: (404, {"error": {"message": "no such model"}})) as server,
        pytest.raises(EndpointError, match=r"model 'judge' \(HTTP 404: no such model\)"),
    ):
        why_silent(Endpoint(section(server.url), None))


def test_no_more_requests_are_under_way_than_allowed():
    with endpoint_server(lambda *_: (time.sleep(0.05), completion("A"))[1]) as server:
        ask(Endpoint(section(server.url, concurrency=2), None), times=6)
    assert server.most_at_once == 2


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"requests_per_minute": 600.0}, {"tokens_per_minute": 600.0 * 8}])
def test_a_minute_s_limit_spreads_requests(limit):
    # A reply takes eight tokens, whatever was expected of it.
    with endpoint_server(lambda *_: completion("A")) as server:
        begun = time.monotonic()
        ask(Endpoint(section(server.url, concurrency=1, **limit), None), times=7)
        assert time.monotonic() - begun >= 0.5


@pytest.mark.slow
def test_tokens_that_a_reply_did_not_take_are_there_for_the_next_request():
    with endpoint_server(lambda *_: completion("A")) as server:
        begun = time.monotonic()
        endpoint = Endpoint(section(server.url, concurrency=1, tokens_per_minute=600.0 * 8), None)
        ask(endpoint, times=5, max_tokens=800)  # ten seconds each, if they took as many
        assert time.monotonic() - begun < 8


def test_a_reply_without_usage_took_what_was_expected_of_it():
    uncounted = (200, {**completion("A")[1], "usage": None})
    with endpoint_server(lambda *_: uncounted) as server:
        endpoint = Endpoint(section(server.url, tokens_per_minute=600.0), None)
        ask(endpoint, max_tokens=60_000)
    assert endpoint._tokens.pause > 600  # of a hundred minutes


def test_everybody_waits_when_the_endpoint_asks_for_it():
    def answer(_, number):
        return completion("A") if number else (429, {}, {"Retry-After": "0.4"})

    with endpoint_server(answer) as server:
        endpoint = Endpoint(section(server.url, concurrency=1), None)
        begun = time.monotonic()
        ask(endpoint, times=2)
        assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 30.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 30.0),
        ("Sun Nov  6 08:49:37 1994", 30.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", None),  # past
        ("Sun, 06 Nov 1994 08:61:37 GMT", None),
        (f"Sun, 06 Nov {10**20} 08:49:37 GMT", None),
        ("soon", None),
        ("nan", None),
        ("2.5", 2.5),
    ],
)
def test_the_pause_that_an_endpoint_asks_for_may_be_a_date_on_its_clock(given, seconds):
    assert retry_after_s({"date": "Sun, 06 Nov 1994 08:49:07 GMT", "retry-after": given}) == seconds


def test_a_date_without_the_endpoint_s_clock_is_on_ours():
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert retry_after_s({"retry-after": at, "date": "?"}) == pytest.approx(99.5, abs=5)


def test_tries_are_apart_even_if_the_endpoint_asks_for_no_pause(monkeypatch: pytest.MonkeyPatch):
    """Servers round less than a second down to 0: all tries at once would end the run within that second."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    limited = (429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
    with endpoint_server(lambda _, number: limited if number < 2 else completion("A")) as server:
        monkeypatch.setattr(asyncio, "sleep", noted)
        ask(Endpoint(section(server.url, backoff_s=100.0, max_backoff_s=150.0), None))
    first, second = (pause for pause in pauses if pause > 1)
    assert 50.0 <= first <= 100.0
    assert 75.0 <= second <= 150.0


def test_tries_without_end_wait_no_longer_than_the_longest_pause(monkeypatch: pytest.MonkeyPatch):
    async def never(*_, **__) -> None:
        raise TypeError("no answer")

    endpoint = Endpoint(section("http://127.0.0.1:1", retries=1100, max_backoff_s=1e-6), None)
    monkeypatch.setattr(endpoint._client.chat.completions, "create", never)
    with pytest.raises(EndpointError, match="1101 tries in a row"):
        ask(endpoint)


def test_a_key_in_the_place_of_its_variable_s_name_is_refused_and_not_repeated():
    with pytest.raises(
        ValueError, match="api_key_env: expected the name of an environment variable"
    ) as caught:
        EndpointSection("http://127.0.0.1:1", "model", api_key_env="sk-secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://host:port/v1", "http://host:99999/v1", "http://[::1/v1", "http://1.2.3.400/v1", "http:///v1"],
)
def test_an_address_that_no_request_can_be_sent_to_is_refused_before_a_worker_starts(url: str):
    with pytest.raises(ValueError, match=r"base_url .*: expected an address such as"):
        section(url)


@pytest.mark.parametrize(
    "url", ["http://localhost", "http://10.0.0.1:8000/v1", "https://[::1]:8443/v1/", "http://a-b.c/x"]
)
def test_an_address_may_be_a_name_or_a_number(url: str):
    Endpoint(section(url), None)


def test_a_wrong_section_is_refused():
    with pytest.raises(ValueError, match="base_url 'localhost:1': expected an address"):
        section("localhost:1")
    with pytest.raises(ValueError, match="concurrency 0"):
        section("http://x", concurrency=0)
