"""What a client says of an answer, against a real server that answers, fails, hangs and refuses."""

import asyncio

import pytest

from pasta.benchmark.load.client import Ask, TimedReply, connect, send
from pasta.benchmark.load.service import Service, busy, idle
from tests.support.load_server import PIECES, load_server


@pytest.fixture(scope="module")
def server():
    with load_server() as found:
        yield found


def ask(text="Hello", **fields):
    return Ask([{"role": "user", "content": text}], "fast", **fields)


def answer_to(server, request, timeout_s=60.0, **options) -> TimedReply:
    async def run():
        async with connect(server.url, **options) as client:
            return await send(client, request, timeout_s)

    return asyncio.run(run())


def run_all(server, asks, clients):
    async def run():
        async with connect(server.url) as client:
            return await Service(client).run(asks, clients)

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_has_its_text_and_the_service_s_account(server, stream):
    answer = answer_to(server, ask(stream=stream))
    assert (answer.ending, answer.error) == ("whole", "")
    assert answer.text == "".join(PIECES)
    assert (answer.tokens, answer.pasta["threads"]) == (10, 3)


@pytest.mark.slow
def test_times_are_of_the_first_text_and_of_the_end(server):
    server.first_s, server.between_s = 0.2, 0.5
    answer = answer_to(server, ask())
    server.first_s = server.between_s = 0.0
    # Not before the server has sent them; a busy machine may read the first one late.
    assert answer.ttft_s >= 0.2
    assert answer.total_s >= 1.2
    assert answer.total_s - answer.ttft_s >= 0.5


def test_the_body_says_what_was_asked_for_and_nothing_else(server):
    answer_to(server, ask(pasta={"mode": "sequential"}, max_tokens=7), api_key="secret")
    assert server.requests[-1] == {
        "model": "fast",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0,
        "max_tokens": 7,
        "stream": True,
        "pasta": {"mode": "sequential"},
    }
    assert server.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("fail", "no such thing"),
        ("error", "a replica was lost"),
        ("cut", "the stream broke off"),
        ("unfinished", "the stream ended without a finish reason"),
    ],
)
def test_an_answer_that_did_not_come_whole_is_lost(server, text, error):
    answer = answer_to(server, ask(text))
    assert (answer.ending, answer.error) == ("lost", error)


def test_an_answer_that_is_no_json_is_lost(server):
    assert answer_to(server, ask("garbage", stream=False)).ending == "lost"


def test_a_service_that_is_not_there_loses_the_answer():
    async def run():
        async with connect("http://127.0.0.1:9") as client:
            return await send(client, ask())

    assert asyncio.run(run()).ending == "lost"


@pytest.mark.slow
def test_an_answer_without_an_end_is_stuck(server):
    assert answer_to(server, ask("hang"), timeout_s=0.5).ending == "stuck"


def test_a_client_that_leaves_closes_its_connection(server):
    async def stopped():
        async with connect(server.url) as client:
            return await Service(client).until(idle, 20)

    assert asyncio.run(stopped()) is not None  # what other tests have left
    before = server.abandoned
    server.between_s = 0.3
    answer = answer_to(server, ask(leave_after=1))
    server.between_s = 0.0
    assert (answer.ending, answer.text) == ("left", PIECES[0])
    assert asyncio.run(stopped()) is not None
    assert server.abandoned == before + 1


def test_a_refusal_is_told_apart_and_says_when_to_ask_again(server):
    server.room = 0
    answer = answer_to(server, ask())
    server.room = 1000
    assert (answer.ending, answer.status, answer.retry_after_s, answer.error) == ("refused", 429, 0.0, "full")


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [("Fri, 01 Jan 2100 00:00:00 GMT", 1e9, 1e10), ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0), ("soon", 0, 0)],
)
def test_a_refusal_is_one_whatever_its_retry_after(server, given, least, most):
    server.room, server.retry_after = 0, given
    answer = answer_to(server, ask())
    server.room, server.retry_after = 1000, "0"
    assert (answer.ending, answer.error) == ("refused", "full")
    assert least <= answer.retry_after_s <= most


def test_as_many_requests_are_under_way_as_there_are_clients(server):
    server.most_active, server.together = 0, 4
    answers, seconds = run_all(server, [ask(str(n)) for n in range(12)], 4)
    server.together = 0
    assert server.most_active == 4
    assert [answer.ending for answer in answers] == ["whole"] * 12
    assert max(answer.total_s for answer in answers) <= seconds <= sum(answer.total_s for answer in answers)


def test_answers_come_in_the_order_of_their_requests(server):
    answers, _ = run_all(server, [ask(text) for text in ("Hello", "fail", "Hello", "cut")], 3)
    assert [answer.ending for answer in answers] == ["whole", "lost", "whole", "lost"]


def test_a_record_keeps_a_digest_of_the_text_and_no_text():
    record = TimedReply(
        "whole", 1.0, 0.5, "secret text", {"tokens": 3, "threads": 2, "document": "secret"}
    ).record()
    assert record == {
        "ending": "whole",
        "total_s": 1.0,
        "ttft_s": 0.5,
        "tokens": 3,
        "text": record["text"],
        "threads": 2,
    }
    assert len(record["text"]) == 12


def test_decoders_are_idle_only_if_they_say_so():
    assert not idle([])
    assert idle([{"active": 0, "waiting": 0, "lanes": 0}, {}])
    assert busy([{"active": 1, "lanes": 3}, {"open": 1}]) == 5


def test_a_slow_upload_arrives_whole_and_takes_its_time(server):
    answer = answer_to(server, ask("word " * 200, upload_s=0.4))
    assert (answer.ending, server.requests[-1]["messages"][0]["content"]) == ("whole", "word " * 200)
    assert answer.total_s >= 0.4
    assert server.headers[-1].get("transfer-encoding") == "chunked"


@pytest.mark.slow
def test_a_slow_reader_gets_the_whole_answer_bit_by_bit(server):
    server.pieces = ["word " * 1000] * 8
    try:
        answer = answer_to(server, ask(read_pause_s=0.05))
    finally:
        server.pieces = list(PIECES)
    assert (answer.ending, answer.text) == ("whole", "word " * 8000)
    assert answer.total_s >= 0.2  # 40 kB in bits of a few


@pytest.mark.parametrize(
    ("text", "retryable"), [("cut", True), ("fail", True), ("error", False), ("garbage", False)]
)
def test_what_went_wrong_says_whether_the_request_may_be_sent_again(server, text, retryable):
    answer = answer_to(server, ask(text, stream=text != "garbage"))
    assert (answer.ending, answer.retryable) == ("lost", retryable)
