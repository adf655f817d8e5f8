"""The service's benchmark as a command: against a server in the service's place, going on, bad input; and for real."""

import asyncio
import contextlib
import dataclasses
import json
import re

import pytest
import yaml

from jobs import benchmark, benchmark_serve
from pasta.benchmark.load import peer as load_peer
from pasta.errors import UserError
from serve.config import FrontSettings, KeySettings
from serve.interpreter.admission import Admission, Overloaded
from serve.launch import read_service_config
from tests.support.load_server import load_server, sleeper
from tests.support.paths import ROOT
from tests.support.service import save_tiny_model, service_config


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def config(tmp_path_factory, model):
    """A service of the models that the server in its place has."""
    models = {
        "fast": {"path": str(model), "dtype": "float32"},
        "slow": {"path": str(model), "dtype": "float32", "mode": "sequential"},
    }
    return service_config(tmp_path_factory.mktemp("config"), model, models=models)


@pytest.fixture
def server():
    with load_server() as found:
        yield found


def run(config, out, *options):
    """The command's exit code and the JSON that it wrote."""
    given = ["serve", "--config", config, "--out", out, "--prompts", 4, "--pairs", 2, "--rounds", 1, *options]
    code = benchmark.main([str(each) for each in given])
    return code, json.loads(out.read_text())


@pytest.mark.slow
def test_latency_is_measured_for_each_number_of_clients_both_ways(server, config, tmp_path, capsys):
    server.first_s = 0.3  # long enough for all clients to be there, on a busy machine too
    code, written = run(
        config, tmp_path / "serve.json", "--url", server.url, "--only", "latency", "--clients", "1,3"
    )
    assert code == 0
    assert written["complete"]
    assert written["command"].startswith("python -m jobs.benchmark serve --config")
    keys = {metric["key"] for metric in written["figures"]}
    assert keys == {
        *(
            f"serve.{what}.{way}.{n}"
            for what in ("ttft", "e2e")
            for way in ("sequential", "parallel")
            for n in (1, 3)
        ),
        "serve.e2e.ratio.1",
        "serve.e2e.ratio.3",
    }
    assert written["settings"]["clients"] == [1, 3]
    lines = (tmp_path / written["records"]["latency"]).read_text().splitlines()
    assert len(lines) == 1 + 4
    assert written["formats"] == {"fast": "float32", "slow": "float32"}
    chosen = {"name": "float32", "why": "for a test"}
    assert all(json.loads(line)["formats"] == {"fast": chosen, "slow": chosen} for line in lines[1:])
    assert "| clients | way" in capsys.readouterr().out
    assert server.most_active == 3


@pytest.mark.slow
def test_a_peer_is_compared_with_both_ways_at_each_number_of_clients(
    server, config, tmp_path, capsys, monkeypatch
):
    own = contextlib.nullcontext(server.url)
    monkeypatch.setattr(benchmark_serve.ServeBenchmark, "_service", lambda *_: own)
    with load_server() as peer:
        options = ["--peer", peer.url, "--peer-model", "slow", "--clients", "1,2"]
        code, written = run(config, tmp_path / "peer.json", *options)
    assert code == 0
    assert {metric["key"] for metric in written["figures"]} == {
        f"serve.peer.{what}.{way}.{n}"
        for what in ("e2e", "rate")
        for way in ("sequential", "parallel")
        for n in (1, 2)
    }
    assert {body["model"] for body in peer.requests} == {"slow"}
    out = capsys.readouterr().out
    assert all(re.search(rf"^\| {n} +\| {side} ", out, re.M) for n in (1, 2) for side in ("peer", "parallel"))


@pytest.mark.slow
def test_a_peer_that_has_another_model_by_now_is_measured_anew(server, config, tmp_path, monkeypatch):
    """A server is started again with another file, on the port of the one before."""
    own, first = contextlib.nullcontext(server.url), ["q8_0"]

    async def listed(*_):
        return first[0]

    monkeypatch.setattr(benchmark_serve.ServeBenchmark, "_service", lambda *_: own)
    for module in (benchmark_serve, load_peer):
        monkeypatch.setattr(module, "first_model", listed)
    with load_server() as peer:
        for first[0], asked in (("q8_0", {"q8_0"}), ("q8_0", set()), ("q4_0", {"q4_0"})):
            peer.requests.clear()
            code, written = run(config, tmp_path / "peer.json", "--peer", peer.url, "--clients", "1")
            assert code == 0
            assert {body["model"] for body in peer.requests} == asked
            assert written["settings"]["peer_model"] == first[0]


@pytest.mark.slow
def test_conversations_by_other_numbers_of_clients_are_held_anew(server, config, tmp_path, monkeypatch):
    """Their place among the numbers says which prompts are theirs: else some would be asked twice, and found cached."""
    own = contextlib.nullcontext(server.url)
    monkeypatch.setattr(benchmark_serve.ServeBenchmark, "_service", lambda *_: own)
    with load_server() as peer:
        for clients, is_held in (("1,2", True), ("1,2", False), ("2", True)):
            peer.requests.clear()
            options = ["--peer", peer.url, "--clients", clients, "--turns", "2"]
            assert run(config, tmp_path / "peer.json", *options)[0] == 0
            assert bool(peer.requests) == is_held


def test_an_interrupted_run_goes_on_with_what_is_missing(server, config, tmp_path, capsys, monkeypatch):
    scenario, done = benchmark_serve.PLAN["latency"], []

    async def interrupted(bench, key):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(key)
        return await scenario.measure(bench, key)

    options = ["--url", server.url, "--only", "latency", "--clients", "1"]
    with monkeypatch.context() as patched:
        changed = dataclasses.replace(scenario, measure=interrupted)
        patched.setitem(benchmark_serve.PLAN, "latency", changed)
        given = [
            "serve",
            "--config",
            config,
            "--out",
            tmp_path / "serve.json",
            "--prompts",
            4,
            "--rounds",
            1,
            *options,
        ]
        assert benchmark.main([str(each) for each in given]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    asked = len(server.requests)
    assert run(config, tmp_path / "serve.json", *options)[0] == 0
    assert "2 measurements, 1 found from an earlier run" in capsys.readouterr().err
    # The service and the other way warm up, then each prompt.
    assert len(server.requests) - asked == 2 + 1 + 4


@pytest.mark.slow
def test_a_soak_that_loses_requests_says_so_and_fails(server, config, tmp_path, capsys):
    server.pieces = ["One."]
    options = ["--url", server.url, "--soak", "20", "--kill-every", "0", "--clients", "1"]
    assert run(config, tmp_path / "soak.json", *options)[0] == 0
    server.broken = True
    code, written = run(config, tmp_path / "soak.json", *options, "--fresh")
    assert code == 1
    assert "error: soak: " in capsys.readouterr().err
    lost = next(metric for metric in written["figures"] if metric["key"] == "soak.lost")
    assert lost["value"] > 0
    assert lost["passed"] is False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--clients", "0"], "--clients: 0, expected positive integers"),
        (["--prompts", "1"], "--prompts: 1, expected at least 2"),
        (["--pairs", "5000"], "--pairs: 5000, but atlas has "),
        (["--max-tokens", "4095"], "--max-tokens: 4095, expected at most 4094: "),
        (["--source", "none.jsonl"], "prompts.source: none.jsonl: no such file"),
        (["--config", "none.yaml"], "none.yaml"),
        (
            ["--peer", "localhost:8080"],
            "--peer: 'localhost:8080', expected a URL, such as http://127.0.0.1:8080",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--peer", "http://127.0.0.1:9"],
            "--url: peer needs a service of its own; leave --url out",
        ),
        (
            ["--peer", "http://127.0.0.1:9"],
            "--peer: http://127.0.0.1:9: /v1/models does not answer as OpenAI's API",
        ),
        (["--peer-model", "m"], "--peer-model: expected with --peer, whose model it is"),
        (["--soak", "5", "--peer", "http://127.0.0.1:9"], "--peer: it does not go with --soak"),
        (["--only", "latency", "--soak", "5"], "--only: it does not go with --soak; run one after the other"),
        (["--url", "http://127.0.0.1:9"], "--url: throughput, kill, refuse need a service of their own"),
        (["--url", "http://127.0.0.1:9", "--only", "kill"], "--url: kill needs a service of its own"),
        (["--url", "http://127.0.0.1:9", "--soak", "5"], "--url: processes are killed in a service"),
        (
            ["--url", "http://127.0.0.1:9", "--only", "latency"],
            "http://127.0.0.1:9: /v1/models does not answer",
        ),
    ],
)
def test_bad_input_is_one_clear_line(config, tmp_path, options, expected):
    given = [] if "--config" in options else ["--config", str(config)]
    with pytest.raises(UserError) as caught:
        benchmark.main(["serve", *given, "--out", str(tmp_path / "serve.json"), *options])
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_service_without_the_configuration_s_models_is_a_clear_mistake(server, tmp_path):
    with pytest.raises(UserError, match="its model 'pasta-atlas-sequential' is none of the service's"):
        benchmark.main(
            ["serve", "--out", str(tmp_path / "serve.json"), "--url", server.url, "--only", "latency"]
        )


def test_a_layout_changes_what_it_is_about_and_nobody_else_needs_a_key(config):
    changed = {"keys": KeySettings(file="keys.yaml"), "front": FrontSettings(proxy="none")}
    args = read_service_config(config).args.model_copy(update=changed)
    configured, one, small, behind = (
        benchmark_serve.with_layout(args, layout, 100)
        for layout in ("as configured", "one decoder", "small budget", "behind a proxy")
    )
    assert configured == args.model_copy(update={"keys": KeySettings()})
    assert one.decoder.num_replicas == 1
    assert one.model_copy(update={"decoder": args.decoder}) == configured
    assert behind == configured.model_copy(update={"front": FrontSettings(proxy="ray")})
    assert small.budget_tokens(2) == 200

    async def two() -> None:
        admission = Admission(small.admission, lambda: small.budget_tokens(2), 200)
        async with admission.hold(141):
            await admission.take(141)

    # One answer of 100 tokens to a prompt of 40 finds room, the next one does not.
    with pytest.raises(Overloaded):
        asyncio.run(two())


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (
            ["ray::ServeReplica:pasta:Gateway.handle_request_with_rejection"],
            "ray::ServeReplica:pasta:Gateway",
        ),
        (["ray::IDLE"], "ray::IDLE"),
        (["/usr/lib/ray/core/src/ray/raylet/raylet", "--store=x"], "raylet"),
        (["/venv/bin/python3.11", "-u", "/venv/ray/dashboard/agent.py", "--x"], "agent.py"),
        ([], "?"),
    ],
)
def test_a_process_has_one_name_whatever_it_is_doing(words, title):
    assert benchmark_serve._title(words) == title


def test_memory_is_told_of_every_process_that_was_started():
    process = sleeper()
    try:
        found = benchmark_serve.memory()
        (name,) = [name for name in found if name.endswith(f" {process.pid}")]
        assert name.startswith("python")
        assert found[name] > 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_measures_a_service_of_its_own(tmp_path, model):
    """Random weights that open promises are not to be had by greedy decoding: the shipped model, a few prompts."""
    config = tmp_path / "service.yaml"
    changed = yaml.safe_load((ROOT / "configs/serve/local.yaml").read_text())
    changed["applications"][0]["args"]["engine"] = {"num_slots": 4, "slot_tokens": 1024}
    config.write_text(yaml.safe_dump(changed))
    small = ["--clients", "1,2", "--max-tokens", "400", "--refusals", "10"]
    code, written = run(config, tmp_path / "serve.json", *small)
    assert code == 0
    assert written["complete"]
    keys = {metric["key"] for metric in written["figures"]}
    assert keys >= {
        "serve.throughput.parallel.2",
        "serve.speedup.ratio",
        "serve.spread",
        "serve.kill.added_s",
        "serve.disconnect.p95",
        "serve.refuse.p99",
    }
    values = {metric["key"]: metric["value"] for metric in written["figures"]}
    assert values["serve.kill.lost"] == values["serve.refuse.silent"] == values["serve.refuse.lost"] == 0
