"""What a service answers hostile requests, counted; and what of it is wrong."""

import dataclasses

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from pasta.benchmark.load import hostile as hostile_module
from pasta.benchmark.load.bodies import KINDS
from pasta.benchmark.load.hostile import hostile, hostile_keys, hostile_violations, judged
from pasta.benchmark.load.report import hostile_report
from pasta.benchmark.load.settings import LoadSettings
from tests.benchmark.load.test_scenarios import measure
from tests.support.load_server import load_server, refused

WHOLE = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
BROKEN = b'data: {"error":{"message":"a replica was lost","type":"server_error"}}\n\n'


def attack(tmp_path, completion=None, **settings):
    """The record of a few requests to a server that answers ``completion(number)``."""
    with load_server() as server:
        if completion is not None:
            server.completion = lambda number: completion(server, number) or refused()
        return measure(server, hostile, "0", tmp_path, hostile=len(KINDS), **settings)


def values(records):
    metrics, tables = hostile_report(records)
    return {metric.key: metric for metric in metrics}, "".join(tables.values())


@pytest.mark.slow
def test_answers_are_counted_by_kind_and_nothing_is_wrong_with_refusals(tmp_path):
    record = attack(tmp_path, memory=lambda: {"ray::Gateway 7": 100.0})
    assert record["statuses"] == {kind: {"400": 1} for kind in KINDS}
    assert (record["requests"], record["wrong"], record["memory_mib"]) == (
        20,
        [],
        {"ray::Gateway 7": [100.0] * 4},
    )
    assert hostile_violations([record]) == []
    metrics, table = values([record])
    assert all(metric.passed is not False for key, metric in metrics.items() if key != "hostile.health_ms")
    assert "| all | 20 |" in " ".join(table.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Response("Internal Server Error", 500), "500: Internal Server Error"),
        (Response("no", 400), "400: the answer is not JSON"),
        (JSONResponse({"detail": "no"}, 422), "422: the answer is not an error of OpenAI's form"),
        (Response(BROKEN, media_type="text/event-stream"), "in a stream: a replica was lost"),
    ],
)
def test_a_wrong_answer_is_named_with_its_number_and_kind(tmp_path, answer, why):
    record = attack(tmp_path, lambda _, number: answer if number == 3 else None)
    assert hostile_violations([record]) == [f"request 3 ({KINDS[3]}, /v1/completions): {why}"]
    metrics, _ = values([record])
    assert (metrics["hostile.wrong"].value, metrics["hostile.wrong"].passed) == (1, False)


@pytest.mark.slow
def test_a_request_that_holds_the_loop_is_named_once(tmp_path):
    def completion(server, number):
        if number == 5:  # the service remembers it
            server.gateway = {**server.gateway, "busy_ms": 71.0, "late_ms": 90.0}

    record = attack(tmp_path, completion)
    assert [(each["number"], each["why"]) for each in record["wrong"]] == [
        (5, "it held the event loop for 71 ms")
    ]
    metrics, _ = values([record])
    assert (metrics["hostile.held"].value, metrics["hostile.busy_ms"].value) == (1, 71.0)
    assert (metrics["hostile.late_ms"].value, metrics["hostile.wrong"].value) == (90.0, 0)


@pytest.mark.slow
def test_a_gateway_that_dies_and_a_request_without_an_answer_are_found(tmp_path):
    def completion(server, number):
        if number == 2:
            server.gateway = {**server.gateway, "pid": 2}
        return StuckResponse() if number == 4 else None

    record = attack(tmp_path, completion, timeout_s=2.0)
    assert [(each["number"], each["why"]) for each in record["wrong"]] == [
        (2, "the Gateway did not survive it"),
        (4, "no answer within 2 s"),
    ]
    metrics, _ = values([record])
    assert (metrics["hostile.dropped"].value, metrics["hostile.wrong"].value) == (1, 1)


class StuckResponse(Response):
    async def __call__(self, scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.mark.slow
def test_a_dropped_connection_is_no_answer(tmp_path):
    class Dropped(Response):
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})

    record = attack(tmp_path, lambda _, number: Dropped() if number == 1 else None)
    assert record["statuses"][KINDS[1]] == {"dropped": 1}
    (line,) = hostile_violations([record])
    assert "the connection was dropped" in line


@pytest.mark.parametrize(
    ("content", "status", "wrong"),
    [
        (WHOLE, "200", ""),
        (b"", "dropped", "the stream is empty"),
        (WHOLE.replace(b"[DONE]", b"{}"), "200", "the stream ended without [DONE]"),
        (BROKEN.replace(b"server_error", b"timeout"), "200, timeout", ""),
    ],
)
def test_streams_are_judged_by_their_last_event(content, status, wrong):
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)
    assert judged(response) == (status, wrong)


def test_a_run_is_kept_in_blocks_so_that_it_goes_on(tmp_path):
    assert hostile_keys(LoadSettings(tmp_path, hostile=250)) == ["0", "100", "200"]


@pytest.mark.slow
@pytest.mark.parametrize(("health_ms", "passed"), [(99.0, True), (101.0, False)])
def test_the_slowest_health_check_has_a_target(tmp_path, health_ms, passed):
    metrics, _ = values([{**attack(tmp_path), "health_ms": health_ms}])
    assert metrics["hostile.health_ms"].passed is passed


@pytest.mark.slow
def test_of_several_copies_one_wrong_answer_is_enough(monkeypatch, tmp_path):
    made = hostile_module.hostile_request
    monkeypatch.setattr(
        hostile_module, "hostile_request", lambda *args: dataclasses.replace(made(*args), copies=3)
    )
    record = attack(tmp_path, lambda _, number: Response("no", 500) if number == 4 else None)
    assert [(each["number"], each["why"]) for each in record["wrong"]] == [(1, "500: no")]
