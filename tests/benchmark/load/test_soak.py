"""What the soak asks for, does, and calls a violation."""

import os
import random
import re
import signal
import threading

import pytest

from pasta.benchmark.load.client import Ask, TimedReply
from pasta.benchmark.load.memory import growth
from pasta.benchmark.load.report import soak_report
from pasta.benchmark.load.scenarios import Bench
from pasta.benchmark.load.settings import LoadSettings
from pasta.benchmark.load.soak import differing, soak, soak_requests, violations, was_cut
from pasta.benchmark.load.ways import find_ways
from tests.benchmark.load.test_scenarios import PROMPTS, measure
from tests.support.load_server import MODELS, load_server, sleeper
from tests.support.waiting import eventually

CLEAN = {"wrong": [], "idle_s": 0.1, "memory_mib": {}}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Clients that wait, read slowly or send slowly do so a little less."""
    for name, seconds in (("_AGAIN_S", 0.05), ("_READ_PAUSE_S", 0.01), ("_UPLOAD_S", 0.1)):
        monkeypatch.setattr(f"pasta.benchmark.load.soak.{name}", seconds)


def bench(tmp_path, **settings):
    chosen = LoadSettings(tmp_path, **settings)
    return Bench(chosen, None, find_ways(MODELS), PROMPTS, PROMPTS, lambda: None)


def test_the_requests_are_of_all_kinds_and_follow_from_the_seed(tmp_path):
    asks = soak_requests(bench(tmp_path))
    assert asks == soak_requests(bench(tmp_path))
    assert asks != soak_requests(bench(tmp_path, soak_seed=1))
    assert len(asks) == 2000
    assert {ask.max_tokens for ask in asks} == {16, 64, 256, 1024}
    assert {ask.pasta["placement"] for ask in asks} == {"local", "spread", "auto"}
    assert {ask.model for ask in asks} == set(MODELS)
    leaving = [ask for ask in asks if ask.leave_after is not None]
    assert all(ask.stream for ask in leaving)
    assert 60 <= len(leaving) <= 140
    assert not all(ask.stream for ask in asks)
    readers, uploads = ([ask for ask in asks if getattr(ask, name)] for name in ("read_pause_s", "upload_s"))
    assert 30 <= len(readers) <= 90
    assert 30 <= len(uploads) <= 90
    assert all(ask.stream for ask in readers)


@pytest.mark.slow
def test_a_soak_counts_what_happened(tmp_path):
    with load_server(num_decoders=2) as server:
        server.between_s, server.room = 0.02, 3
        settings = {"soak": 30, "soak_clients": 5, "kill_every_s": 0.1}
        record = measure(server, soak, "0", tmp_path, memory=lambda: {"gateway 1": 100.0}, **settings)
    ended = record["endings"]
    assert ended["whole"] + ended.get("left", 0) == record["requests"] == 30
    assert ended["refused"] > 0
    assert record["kills"]
    assert record["wrong"] == []
    assert record["differing"] == 0
    assert record["memory_mib"]["gateway 1"]
    assert violations([record]) == []


def held_by(server, killed):
    """A process for each kind but the decoders, which takes the requests that are open with it when it is killed."""

    def replicas(kind):
        killed.append(sleeper())
        server.lives += 1
        return [killed[-1].pid]

    return replicas


@pytest.mark.slow
def test_decoders_interpreters_and_gateways_are_killed_in_turn_and_what_these_held_is_sent_again(tmp_path):
    killed = []
    with load_server(num_decoders=3) as server:
        server.between_s, server.pieces = 0.05, ["word "] * 4
        settings = {"soak": 60, "soak_clients": 6, "kill_every_s": 0.15}
        record = measure(server, soak, "0", tmp_path, replicas=held_by(server, killed), **settings)
    assert [process.wait(5) for process in killed] == [-signal.SIGKILL] * len(killed)
    kinds = [kind for _, kind in record["kills"]]
    assert kinds[:4] == ["Decoder", "Interpreter", "Gateway", "Decoder"]
    assert record["endings"]["cut"] > 0
    assert record["endings"].get("lost", 0) == 0
    assert record["endings"]["whole"] + record["endings"].get("left", 0) == 60
    assert violations([record]) == []
    (cut,) = [metric for metric in soak_report([record])[0] if metric.key == "soak.cut"]
    assert cut.value == record["endings"]["cut"]


@pytest.mark.parametrize(
    ("answer", "sent_s", "cut"),
    [
        (TimedReply("lost", total_s=2.0, retryable=True), 9.0, True),
        (TimedReply("lost", total_s=2.0, retryable=True), 10.5, False),  # sent after the death
        (TimedReply("lost", total_s=60.0, retryable=True), 9.0, False),  # long after it
        (TimedReply("lost", total_s=2.0), 9.0, False),  # not to be sent again
        (TimedReply("stuck", total_s=2.0, retryable=True), 9.0, False),
        (TimedReply("whole", total_s=2.0), 9.0, False),
    ],
)
def test_only_what_was_open_at_a_death_and_says_so_is_cut_by_it(answer, sent_s, cut):
    assert was_cut(answer, sent_s, [(3.0, "Decoder"), (10.0, "Gateway")]) == cut
    assert not was_cut(answer, sent_s, [(10.0, "Decoder")])


def test_lost_and_stuck_requests_are_violations(tmp_path):
    with load_server() as server:
        prompts = [[{"role": "user", "content": "error"}]]
        record = measure(server, soak, "0", tmp_path, prompts, soak=4, soak_clients=2, kill_every_s=0)
    streamed = [each for each in record["wrong"] if each["ending"] == "lost"]
    assert streamed
    assert violations([record]) == [f"{len(streamed)} requests lost, the first: a replica was lost"]
    stuck = {**CLEAN, "wrong": [{"ending": "stuck", "error": "no end"}], "idle_s": None}
    assert violations([stuck]) == [
        "1 requests stuck, the first: no end",
        "decoders still busy 30 s after the last answer",
    ]


@pytest.mark.parametrize(("per_sample", "grows"), [(0.0, False), (0.1, False), (3.0, True)])
def test_memory_that_goes_on_growing_is_a_violation(per_sample, grows):
    rng = random.Random(0)
    samples = [100 + 50 * (n > 2) + per_sample * n + rng.uniform(-5, 5) for n in range(60)]
    assert bool(violations([{**CLEAN, "memory_mib": {"gateway 7": samples}}])) == grows


def test_a_process_that_was_killed_soon_is_not_judged():
    assert violations([{**CLEAN, "memory_mib": {"decoder 8": [100.0, 900.0, 1800.0]}}]) == []


def test_growth_leaves_the_start_out():
    assert growth([1, 1, 1, 1, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7]) == (5, 7)


def test_greedy_answers_to_the_same_request_should_not_differ():
    def ask(text, placement, length=16):
        return Ask(
            [{"role": "user", "content": text}], "fast", {"mode": "parallel", "placement": placement}, length
        )

    asks = [ask("A", "local"), ask("A", "spread"), ask("A", "auto"), ask("A", "local", 64), ask("B", "local")]
    texts = ["one", "one", "two", "other", "other"]
    assert differing(asks, [TimedReply("whole", text=text) for text in texts]) == 1
    assert differing(asks[:2], [TimedReply("whole", text="one"), TimedReply("left", text="o")]) == 0


@pytest.mark.slow
def test_a_soak_ends_with_its_time_and_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("pasta.benchmark.load.soak._SAY_EVERY_S", 0.05)
    lines = []
    with load_server(num_decoders=2) as server:
        server.between_s = 0.02
        settings = {"soak": 2000, "soak_s": 0.4, "soak_clients": 2, "kill_every_s": 0}
        record = measure(server, soak, "0", tmp_path, say=lines.append, **settings)
    assert record["ended"] == "time"
    assert 0 < record["requests"] < 2000
    assert sum(record["endings"].get(ending, 0) for ending in ("whole", "left")) == record["requests"]
    assert violations([record]) == []
    assert re.match(
        r"soak: \d+/2000 requests in \d+ s, [\d.]+ a second, eta 0\.0 min; 0 kills, 0 lost", lines[-1]
    )


def test_an_interrupted_soak_finishes_what_is_open_and_has_a_record(tmp_path):
    with load_server(num_decoders=2) as server:
        server.between_s = 0.02

        def interrupt():
            assert eventually(lambda: len(server.requests) > 5)  # not before the soak has begun
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        record = measure(server, soak, "0", tmp_path, soak=2000, soak_clients=2, kill_every_s=0)
    assert record["ended"] == "interrupted"
    assert 0 < record["requests"] < 2000
    assert violations([record]) == []
