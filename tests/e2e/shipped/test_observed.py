"""What a running service tells of itself: metrics on its node's port, log lines of every actor, traces in answers.
Real Ray Serve, the shipped model, two decoders."""

import itertools
import json
import re
import time
import uuid
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.shipped.conftest import EXPORT_S
from tests.serve.observe.test_metrics import named, queries
from tests.support.metrics import METRICS, exported
from tests.support.waiting import eventually

MODEL = "pasta-atlas"
SPREAD = {"placement": "spread"}


@pytest.fixture(scope="module")
def metrics_url(service):
    return service.wait_for(r"^metrics at (http://127\.0\.0\.1:\d+/metrics)")[1]


@pytest.fixture(scope="module")
def logs(service):
    return Path(service.wait_for(r"logs in (\S+)$")[1])


def ask(http, content="Describe Mars, Venus and Saturn.", headers=None, **fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0}
    body |= {"pasta": SPREAD, **fields}
    return http.post("/v1/chat/completions", json=body, headers=headers)


# -- metrics ---------------------------------------------------------------------------------------------

_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def scrape(metrics_url):
    """Samples by name: labels and value."""
    found = {}
    for name, labels, value in _SAMPLE.findall(httpx.get(metrics_url, trust_env=False).text):
        found.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return found


def gather(metrics_url, samples):
    """``samples`` with those of one more scrape: Ray forgets a gauge that was not told again for two exports, which
    takes a busy machine longer now and then."""
    samples.update(scrape(metrics_url))
    return samples


def families(samples):
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples} | set(samples)


def test_every_metric_of_the_board_is_exported_after_a_request_of_each_kind(http, metrics_url):
    for fields in ({}, {"pasta": {"mode": "sequential"}}, {"max_tokens": 9, "stream": True}):
        ask(http, **fields).raise_for_status()
    wanted = set().union(*map(named, queries()))
    assert wanted == {exported(metric) for metric in METRICS.values()}
    samples = {}
    assert eventually(lambda: wanted <= families(gather(metrics_url, samples))), wanted - families(samples)


def test_its_samples_have_the_labels_that_the_board_asks_for(http, metrics_url):
    ask(http).raise_for_status()
    named_metrics = {
        exported(metric) + ("_count" if metric.kind == "histogram" else ""): metric
        for metric in METRICS.values()
    }
    samples = {}
    assert eventually(lambda: named_metrics.keys() <= gather(metrics_url, samples).keys()), (
        named_metrics.keys() - samples
    )
    for name, metric in named_metrics.items():
        for labels, _ in samples[name]:
            assert set(metric.labels) | {"deployment", "replica", "application"} <= set(labels), name


def test_an_answer_is_counted_once_with_its_tokens_threads_and_spills(http, metrics_url):
    ask(http)

    def counts():
        samples = scrape(metrics_url)
        names = "pasta_requests_total", "pasta_generation_tokens_total", "pasta_spills_total"
        names += "pasta_threads_total", "pasta_request_threads_count"
        return [sum(value for _, value in samples[f"ray_{name}"]) for name in names]

    def is_counted():
        time.sleep(3 * EXPORT_S)  # what came before has been exported
        before = counts()
        figures = ask(http).json()["pasta"]
        assert figures["spills"] > 0
        expected = [1, figures["tokens"], figures["spills"], figures["threads"], 1]
        wanted = [a + b for a, b in zip(before, expected, strict=True)]
        return eventually(lambda: counts() == wanted, 20.0)

    # Once more where what came before was not: a busy machine exports it later now and then.
    assert any(is_counted() for _ in range(3))


def test_no_label_says_who_asked_or_what(http, metrics_url):
    canary = f"canary{uuid.uuid4().hex}"
    headers = {"X-Request-Id": canary, "Authorization": f"Bearer sk-{canary}"}
    ask(http, canary, headers, user=canary)
    http.get(f"/v1/models/{canary}")
    http.get(f"/{canary}")
    time.sleep(3 * EXPORT_S)
    assert canary not in httpx.get(metrics_url, trust_env=False).text


def test_only_the_replicas_calls_of_each_other_come_from_outside_this_machine_if_they_may(service):
    """Those ask for Ray's token (Serve binds their port to every address); the rest is on the loopback interface."""
    listening = {}
    for process in service.descendants():
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                address = connection.laddr.ip.removeprefix("::ffff:")
                listening.setdefault(address, set()).add(" ".join(process.cmdline())[:40])
    assert "127.0.0.1" in listening
    assert set(listening) <= {"127.0.0.1", "::1", "::"}
    assert all(name.startswith("ray::ServeReplica") for name in listening.get("::", ()))


# -- logs ------------------------------------------------------------------------------------------------


def lines_about(logs, request):
    """Log lines about a request, by deployment."""
    found = {}
    for file in logs.glob("replica_*"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("request") == request:
                found.setdefault(entry["deployment"].removeprefix("pasta_"), []).append(entry)
    return found


def test_a_request_s_id_is_in_the_lines_of_every_actor_and_comes_back(http, logs):
    request = f"r-{uuid.uuid4().hex}"
    answer = ask(http, headers={"X-Request-Id": request})
    assert answer.headers["x-request-id"] == request
    figures = answer.json()["pasta"]

    def complete():
        found = lines_about(logs, request)
        return (
            found if len(found.get("Decoder", ())) == 1 + figures["spills"] and "Gateway" in found else None
        )

    found = eventually(complete)
    (answered,), (admitted,) = found["Gateway"], found["Interpreter"]
    assert (answered["message"], answered["tokens"]) == ("answered", figures["tokens"])
    assert (admitted["message"], admitted["completion"]) == ("admitted", answer.json()["id"])
    assert {line["message"] for line in found["Decoder"]} == {"decoded"}
    # Both replicas had a part in it.
    assert len({line["replica"] for line in found["Decoder"]}) == 2


def test_a_request_without_an_id_is_found_by_the_one_it_was_given(http, logs):
    given = ask(http).headers["x-request-id"]
    assert eventually(lambda: set(lines_about(logs, given)) == {"Gateway", "Interpreter", "Decoder"})


def test_a_client_that_leaves_is_a_line_too(http, logs):
    request = f"r-{uuid.uuid4().hex}"
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Describe Mars, Venus, Jupiter and Saturn."}],
    }
    body |= {"stream": True}
    headers = {"X-Request-Id": request}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        lines = response.iter_lines()
        next(lines)

    def left():
        return [line["message"] for line in lines_about(logs, request).get("Gateway", ())]

    assert eventually(left) in (["abandoned"], ["answered"])


def test_no_prompt_answer_or_header_is_in_any_log(http, logs):
    canary = f"canary{uuid.uuid4().hex}"
    headers = {"Authorization": f"Bearer sk-{canary}"}
    text = ask(http, canary, headers, user=canary).json()["choices"][0]["message"]["content"]
    ask(http, canary, headers, stream=True)
    ask(http, canary, headers, stop=[canary], max_tokens="many")
    http.post("/v1/completions", json={"model": MODEL, "prompt": canary, "max_tokens": 5}, headers=headers)
    time.sleep(1)
    written = b"".join(file.read_bytes() for file in logs.parent.rglob("*") if file.is_file())
    assert b"answered" in written
    assert canary.encode() not in written
    assert text.encode() not in written


# -- traces ----------------------------------------------------------------------------------------------


def test_a_trace_has_a_track_for_each_thread_and_what_placement_did(http):
    pasta = ask(http, pasta={**SPREAD, "trace": True}).json()["pasta"]
    events = pasta["trace"]["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert len(tracks) == pasta["threads"] > 1
    assert tracks[0] == "main thread"
    decoded = {e["tid"] for e in events if e["name"] == "decode"}
    assert decoded == set(tracks)
    assert sum(e["name"] == "spill" for e in events) == pasta["spills"] > 0


def test_threads_that_decode_at_the_same_time_are_beside_each_other_and_a_track_s_slices_in_a_row(http):
    events = ask(http, pasta={**SPREAD, "trace": True}).json()["pasta"]["trace"]["traceEvents"]
    slices = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"]))
    for one, next_ in itertools.pairwise(slices):
        assert one["tid"] < next_["tid"] or one["ts"] + one["dur"] <= next_["ts"] + 1e-3
    decoding = [e for e in slices if e["name"] == "decode"]
    assert any(
        a["tid"] != b["tid"] and a["ts"] < b["ts"] < a["ts"] + a["dur"]
        for a, b in itertools.permutations(decoding, 2)
    )
    assert max(e["args"]["lanes"] for e in events if e["name"] == "lanes") > 1


def test_a_trace_has_the_request_s_way_from_the_gateway_to_its_decoder_and_back(http):
    sent = time.time()
    trace = ask(http, pasta={"trace": True}).json()["pasta"]["trace"]
    stages, times = zip(*trace["otherData"]["marks"], strict=True)
    assert stages == (
        *("body", "to the Interpreter", "admission", "encoding", "to the Decoder"),
        *("decoding", "from the Decoder", "end"),
    )
    assert [*times] == sorted(times)
    assert sent - 1e-3 < times[0] <= times[-1] < time.time() + 1e-3  # they are rounded


def test_without_asking_there_is_no_trace(http):
    assert "trace" not in ask(http).json()["pasta"]
