"""Each scenario's record, against a real server in the service's place; and the engine by itself."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pasta.benchmark.load import peer, scenarios
from pasta.benchmark.load.bare import Bare, Models
from pasta.benchmark.load.client import connect
from pasta.benchmark.load.plan import PLAN
from pasta.benchmark.load.scenarios import Bench
from pasta.benchmark.load.service import Service, paused
from pasta.benchmark.load.settings import HOSTILE, PEER, SCENARIOS, SOAK, LoadSettings
from pasta.benchmark.load.ways import find_ways
from pasta.engine import EngineConfig
from pasta.errors import UserError
from pasta.interpreter import Limits
from tests.support.load_server import MODELS, load_server, sleeper
from tests.support.models import tiny

PROMPTS = [[{"role": "user", "content": f"Tell me about {name}"}] for name in "ABCDEF"]


def bare(ways) -> Bare:
    loaded = {name: tiny() for name in MODELS}
    return Bare(Models(loaded, EngineConfig(num_slots=2), Limits(max_tokens=12)), [*ways.values()])


def measure(
    server,
    measure,
    key="0",
    tmp_path=None,
    prompts=PROMPTS,
    memory=None,
    say=lambda _: None,
    replicas=None,
    **settings,
):
    async def run():
        async with connect(server.url) as client:
            ways = find_ways(MODELS)
            chosen = LoadSettings(tmp_path, **{"prompts": 3, "max_tokens": 50, "timeout_s": 20.0, **settings})
            bench = Bench(
                chosen, Service(client, 20), ways, prompts, prompts, lambda: bare(ways), memory, say
            )
            return await measure(replace(bench, replicas=replicas), key)

    return asyncio.run(run())


@pytest.fixture
def server():
    with load_server(num_decoders=2) as found:
        yield found


def test_every_part_has_a_place_in_the_plan():
    assert set(PLAN) == {*SCENARIOS, SOAK, HOSTILE, PEER}


def test_a_block_of_latency_asks_every_prompt_after_some_for_each_client_to_warm_up(server, tmp_path):
    server.together = 2
    record = measure(server, scenarios.latency, "1 2 sequential", tmp_path)
    assert len(server.requests) == 2 + 3
    assert {(body["model"], body["pasta"]["mode"]) for body in server.requests} == {("slow", "sequential")}
    assert server.most_active == 2
    assert [answer["ending"] for answer in record["answers"]] == ["whole"] * 3
    assert record["seconds"] > 0


def test_a_peer_writes_as_many_tokens_as_the_sequential_model_has_written(server, tmp_path):
    with load_server() as other:
        record = measure(server, peer.beside_peer, "0 1", tmp_path, peer=other.url)
    assert {way: len(block["answers"]) for way, block in record.items()} == dict.fromkeys(peer.SIDES, 3)
    assert {answer["tokens"] for answer in record["peer"]["answers"]} == {10}
    asked = other.requests[-1]
    assert (asked["model"], asked["max_tokens"], asked["ignore_eos"]) == ("fast", 10, True)
    assert "pasta" not in asked
    assert asked["messages"] == server.requests[-1]["messages"]
    assert record["peer"]["answers"][0]["ttft_s"] > 0


def test_conversations_beside_a_peer_go_on_from_each_side_s_own_answers(server, tmp_path):
    settings = {"turns": 3, "clients": (1, 2), "rounds": 1}
    with load_server() as other:
        other.pieces = ["Four."]
        record = measure(server, peer.beside_peer, "0 2", tmp_path, peer=other.url, **settings)
    asked = other.requests[-1]["messages"]
    assert asked[::2] == [prompt[0] for prompt in PROMPTS[3:]], "each block has prompts of its own"
    assert asked[1::2] == [{"role": "assistant", "content": "Four."}] * 2
    assert server.requests[-1]["messages"][1]["content"] == "".join(server.pieces)
    assert len(record["parallel"]["answers"]) == len(record["peer"]["answers"]) == 3


def test_conversations_are_compared_whole_and_their_first_tokens_turn_by_turn():
    def side(seconds, first, cached):
        answers = [
            {"total_s": seconds, "ttft_s": first / (turn + 1), "tokens": 40, "prompt": 100, "cached": cached}
            for turn in (0, 1)
        ]
        return {"seconds": 2 * seconds, "answers": answers}

    sides = {"peer": side(4.0, 0.2, None), "sequential": side(2.0, 0.1, 50), "parallel": side(1.0, 0.1, 75)}
    metrics, tables = peer.peer_report([{"key": "0 8", "turns": 2, **sides}] * 2)
    values = {metric.key: metric.value for metric in metrics}
    assert values["serve.peer.turns.sequential.8"] == pytest.approx(2.0)
    assert values["serve.peer.turns.parallel.8"] == pytest.approx(4.0)
    (table,) = tables.values()
    told, ours, _ = table.splitlines()[2:]
    assert "| 200 / 100 " in told
    assert "not told" in told
    assert "| 80 " in ours
    assert "| 0.50 " in ours


def test_a_service_is_stopped_while_the_peer_answers_and_goes_on_whatever_happens():
    process = sleeper()
    try:
        with contextlib.suppress(UserError), paused([process.pid]):
            while state(process) != "T":
                time.sleep(0.01)
            raise UserError("the peer is gone")
        while state(process) == "T":
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()


def state(process):
    """Linux' letter for what a process does: T if it is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (
            {"usage": lambda body: {"completion_tokens": 3}},
            "an answer of 3 tokens by its usage, expected 10: it has",
        ),
        ({"room": 0}, r"did not answer \(refused, 429\): full"),
    ],
)
def test_a_peer_that_does_otherwise_is_named_with_what_was_expected(server, tmp_path, wrong, expected):
    with load_server() as other:
        vars(other).update(wrong)
        with pytest.raises(UserError, match=f"--peer: {other.url}: .*{expected}"):
            measure(server, peer.beside_peer, "0 1", tmp_path, peer=other.url)


@pytest.mark.slow
def test_throughput_decodes_the_same_prompts_over_http_and_by_the_bare_engine(server, tmp_path):
    record = measure(server, scenarios.throughput, "0 2 parallel", tmp_path)
    assert record["service"][0] == 3 * 10
    assert record["bare"][0] == 3 * 12  # random weights go on to the end
    assert record["service"][1] > 0 < record["bare"][1]


@pytest.mark.slow
def test_speedup_times_a_prompt_both_ways_on_both_sides_in_turn(server, tmp_path):
    record = measure(server, scenarios.speedup, "4", tmp_path)
    assert {*record["http"]} == {*record["bare"]} == {"sequential", "parallel"}
    assert [body["model"] for body in server.requests] == ["slow", "fast"] * (1 + scenarios.REPEATS)
    assert {body["messages"][0]["content"] for body in server.requests} == {"Tell me about E"}


def test_spread_asks_for_each_placement(server, tmp_path):
    record = measure(server, scenarios.spread, "0", tmp_path)
    assert [body["pasta"]["placement"] for body in server.requests] == [
        "local",
        "local",
        "spread",
        "spread",
    ] + ["auto"] * 2
    assert record["spread"]["spills"] == 2


@pytest.mark.slow
def test_a_decoder_is_killed_while_requests_are_under_way_and_another_takes_its_place(server, tmp_path):
    server.between_s = 0.2
    before = {decoder.pid for decoder in server.decoders}
    record = measure(server, scenarios.killed, "0", tmp_path)
    assert len(before & {decoder.pid for decoder in server.decoders}) == 1
    assert record["lanes"] == 3 * scenarios.KILL_CLIENTS
    assert [answer["ending"] for answer in record["disturbed"]] == ["whole"] * scenarios.KILL_CLIENTS
    assert len(record["undisturbed"]) == scenarios.KILL_CLIENTS
    assert record["back_s"] > 0


def test_a_kill_needs_a_second_decoder(tmp_path):
    with (
        load_server(num_decoders=1) as server,
        pytest.raises(UserError, match=r"expected decoder\.num_replicas"),
    ):
        measure(server, scenarios.killed, "0", tmp_path)


def test_what_a_client_left_is_watched_until_nothing_is_busy(server, tmp_path):
    server.pieces = ["word "] * (scenarios.LEAVE_AFTER + 100)
    server.between_s, server.stopping_s = 0.005, 0.3
    begun = time.perf_counter()
    record = measure(server, scenarios.disconnect, "0", tmp_path)
    # What the server still does after its client has gone is counted, however fast it is asked.
    assert 0.3 <= record["idle_s"] <= time.perf_counter() - begun
    assert 0 <= record["busy_s"] <= record["idle_s"]
    assert server.abandoned == 1
    assert server.requests[-1]["ignore_eos"], "an answer of a fast machine would be whole before"


def test_an_answer_that_is_too_short_to_be_left_says_nothing(server, tmp_path):
    assert measure(server, scenarios.disconnect, "0", tmp_path) == {"ended": True}


@pytest.mark.slow
def test_refusals_are_timed_while_others_are_answered(server, tmp_path):
    server.room, server.first_s = 2, 0.05
    record = measure(server, scenarios.refuse, "0", tmp_path, refusals=20)
    assert len(record["refused_s"]) >= 20
    assert record["without_retry_after"] == 0
    assert {answer["ending"] for answer in record["admitted"]} == {"whole"}
    assert server.most_active == 2


@pytest.mark.slow
def test_a_service_that_refuses_nothing_is_a_clear_mistake(server, tmp_path):
    with pytest.raises(UserError, match="expected an admission budget that holds one answer"):
        measure(server, scenarios.refuse, "0", tmp_path, timeout_s=0.5)


def test_a_lost_answer_ends_a_part_that_needs_whole_ones(server, tmp_path):
    with pytest.raises(UserError, match="a replica was lost"):
        measure(
            server, scenarios.latency, "0 1 parallel", tmp_path, [[{"role": "user", "content": "error"}]] * 3
        )


def test_the_ways_are_the_first_model_of_each_mode():
    ways = find_ways({"a": "parallel", "b": "parallel", "twin": "sequential"})
    assert (ways["parallel"].model, ways["sequential"].model) == ("a", "twin")
    assert find_ways({"a": "parallel"})["sequential"].model == "a"
    with pytest.raises(UserError, match="none has mode parallel"):
        find_ways({"twin": "sequential"})
