"""What the Gateway says of requests that pass: for metrics and for logs."""

import asyncio
import contextlib
import logging
from contextlib import aclosing

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from pasta.engine import SamplingParams
from serve.errors import overloaded, unavailable
from serve.observe.watch import CountResponses, Watch, watched
from serve.wire import Accepted, Delta, Finished, Order
from tests.serve.observe.test_metrics import PASTA


class Clock:
    """Goes on by a tenth of a second whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.1
        return round(self.now, 6)


def order(n=1, prompts=("Hello",)) -> Order:
    return Order(
        request_id="chatcmpl-1",
        model="pasta-atlas",
        prompts=[*prompts],
        n=n,
        logprobs=None,
        max_tokens=None,
        temperature=0.0,
        sampling=SamplingParams(),
        mode=None,
        max_threads=None,
        wants_events=False,
        wants_document=False,
    )


def follow(updates, caplog, n=1, prompts=("Hello",), error=None, leave_after=None):
    """Observations, the log's lines, and what the client got."""
    observed, got = [], []

    async def source():
        for update in updates:
            yield [update]
        if error is not None:
            raise error

    async def run():
        watch = Watch("r-1", order(n, prompts), "parallel", key="ann", record=observed.extend, clock=Clock())
        async with aclosing(watched(source(), watch)) as passing:
            async for batch in passing:
                got.extend(batch)
                if len(got) == leave_after:
                    return

    caplog.set_level(logging.INFO, "ray.serve")
    logging.getLogger("ray.serve").propagate = True
    with pytest.raises(type(error)) if error else contextlib.nullcontext():
        asyncio.run(run())
    return observed, [record for record in caplog.records if record.name == "ray.serve"], got


UPDATES = [Accepted(30), Delta(""), Delta("Hello"), Delta("!"), Finished("stop", 30, 200, PASTA)]


def counted(observed):
    return [o.labels["finish_reason"] for o in observed if o.name == "pasta_requests"]


def test_updates_pass_as_they_are(caplog):
    assert follow(UPDATES, caplog)[2] == UPDATES


def test_an_answer_is_observed_when_it_has_finished(caplog):
    observed, lines, _ = follow(UPDATES, caplog)
    values = {o.name: o.value for o in observed}
    assert counted(observed) == ["stop"]
    # The clock was read when the request came, at its first text, and at its end.
    assert values["pasta_time_to_first_token_seconds"] == pytest.approx(0.1)
    assert values["pasta_e2e_request_latency_seconds"] == pytest.approx(0.2)
    assert values["pasta_prompt_tokens"] == 30
    (line,) = lines
    assert (line.getMessage(), line.request, line.completion, line.key) == (
        "answered",
        "r-1",
        "chatcmpl-1",
        "ann",
    )
    assert (line.finish_reason, line.tokens, line.threads) == ("stop", 201, 4)


def test_each_choice_is_an_answer(caplog):
    choices = [Accepted(30), Delta("a", index=1), Finished("stop", 30, 9, PASTA, index=1)]
    choices += [Delta("b"), Finished("length", 30, 9, PASTA)]
    observed, lines, _ = follow(choices, caplog, 2)
    assert counted(observed) == ["stop", "length"]
    assert (lines[0].finish_reason, lines[0].num_choices, lines[0].tokens) == ("stop,length", 2, 402)


def test_a_prompt_is_counted_once_however_many_answers_it_has(caplog):
    prompts = [Accepted(37)]
    prompts += [Finished("stop", 7 if index > 1 else 30, 9, PASTA, index=index) for index in (1, 3, 0, 2)]
    observed, _, _ = follow(prompts, caplog, 2, ["Hello", "Bye"])
    for name in ("pasta_prompt_tokens", "pasta_request_prompt_tokens"):
        assert sorted(o.value for o in observed if o.name == name) == [7, 30]
    assert len(counted(observed)) == 4


def test_the_line_has_the_tokens_of_all_prompts(caplog):
    prompts = [Accepted(37), Finished("stop", 30, 9, PASTA), Finished("stop", 7, 9, PASTA, index=1)]
    (line,) = follow(prompts, caplog, prompts=["Hello", "Bye"])[1]
    assert line.prompt_tokens == 37


def test_a_client_that_leaves_abandons_what_had_not_finished(caplog):
    observed, lines, _ = follow(UPDATES, caplog, 2, leave_after=3)
    assert counted(observed) == ["abandoned", "abandoned"]
    assert lines[0].getMessage() == "abandoned"


def test_an_answer_that_breaks_off_is_an_error(caplog):
    observed, lines, _ = follow(UPDATES[:3], caplog, error=unavailable("lost"))
    assert counted(observed) == ["error"]
    assert (lines[0].getMessage(), lines[0].status, lines[0].levelname) == ("broke off", 503, "ERROR")


def test_a_bug_is_no_client_that_left(caplog):
    observed, lines, _ = follow(UPDATES[:3], caplog, error=RuntimeError("a bug"))
    assert counted(observed) == ["error"]
    assert (lines[0].getMessage(), lines[0].status, lines[0].levelname) == ("broke off", 500, "ERROR")


def test_a_refused_request_is_no_answer(caplog):
    observed, lines, _ = follow([], caplog, error=overloaded())
    assert observed == []
    assert (lines[0].getMessage(), lines[0].status, lines[0].code) == ("refused", 429, "overloaded")


def responses(*paths):
    """Statuses, and what was counted."""
    app, observed = FastAPI(), []

    @app.get("/things/{name}")
    async def thing(name: str):
        if name == "broken":
            raise RuntimeError
        return StreamingResponse(iter(["a", "b"]))

    counting = CountResponses(app, observed.extend)

    async def run():
        transport = httpx.ASGITransport(counting, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return [(await http.get(path)).status_code for path in paths]

    return asyncio.run(run()), [tuple(o.labels.values()) for o in observed]


def test_responses_are_counted_by_route_and_status_whatever_was_asked_for():
    statuses, found = responses("/things/1", "/things/2", "/nothing/3", "/things/broken")
    assert statuses == [200, 200, 404, 500]
    assert found == [
        ("/things/{name}", "200"),
        ("/things/{name}", "200"),
        ("unmatched", "404"),
        ("/things/{name}", "500"),
    ]


def test_a_client_that_reads_nothing_is_counted_and_logged(caplog):
    observed = []
    caplog.set_level(logging.WARNING, "ray.serve")
    logging.getLogger("ray.serve").propagate = True
    Watch("r-1", order(), "parallel", key="ann", record=observed.extend).unread(60.0)
    assert [o.name for o in observed] == ["pasta_slow_readers"]
    line = next(record for record in caplog.records if record.name == "ray.serve")
    assert (line.getMessage(), line.request, line.key) == ("slow reader", "r-1", "ann")
    assert line.write_timeout_s == 60.0
