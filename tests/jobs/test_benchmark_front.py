"""The rig of stand-ins: what it starts, and how it says what a token costs."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import benchmark, benchmark_front
from jobs.benchmark_front import FrontLoad, processor_s, table, with_stand_ins
from pasta.errors import UserError
from serve.config import KeySettings
from serve.launch import LOCAL, read_service_config

LOAD = FrontLoad(streams=300, answers=1, tokens=10, token_ms=5.0, decoders=3)


def test_the_service_has_stand_ins_as_many_interpreters_and_refuses_nothing():
    config = read_service_config(LOCAL)
    args = with_stand_ins(config, LOAD, 4, "haproxy", Path("/keys.yaml")).args
    assert (args.front.interpreters, args.front.gateways, args.front.proxy) == (4, 4, "haproxy")
    assert (args.decoder.num_replicas, args.decoder.stand_in_ms) == (3, 5.0)
    assert args.keys == KeySettings(file="/keys.yaml")
    assert args.budget_tokens(1) > LOAD.streams * 4096
    assert args.max_ongoing_requests >= LOAD.streams
    assert args.models == config.args.models


def test_processor_time_is_told_by_kind_of_process():
    before, begun = processor_s(), time.process_time()
    while time.process_time() < begun + 0.05:  # Linux tells it in hundredths of a second
        sum(range(10**5))
    assert processor_s()["client"] > before["client"] > 0


def test_the_table_has_a_row_for_each_way_with_the_means_of_its_rounds():
    def record(number, proxy, per_s):
        taken = {"Interpreter": 51.26, "client": 9.0}
        return {
            "interpreters": number,
            "proxy": proxy,
            "tokens_per_s": per_s,
            "processor_us_per_token": taken,
        }

    ways = (1, "ray"), (2, "ray"), (2, "haproxy")
    rows = table([record(*way, per_s) for per_s in (900.0, 1100.0) for way in ways]).splitlines()
    assert len(rows) == 5
    assert "| 2 | haproxy | 1000 | 51.3 | 0.0 |" in " ".join(rows[-1].split())


def test_ways_that_cannot_be_measured_are_refused_before_any_is(tmp_path):
    out = ["--out", str(tmp_path / "front.json")]
    with pytest.raises(UserError, match=r"^front.gateways: 2, but without a proxy"):
        benchmark.main(["front", "--interpreters", "1,2", "--proxies", "ray,none", *out])
    with pytest.raises(SystemExit):
        benchmark.main(["front", "--proxies", "squid", *out])


def test_a_run_that_is_cut_keeps_what_it_has_measured(tmp_path, monkeypatch):
    measured = iter([{"tokens_per_s": 900.0, "processor_us_per_token": {}}])

    async def measure(*_):
        try:
            return next(measured)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(benchmark_front, "running", lambda *_, **__: nullcontext(SimpleNamespace(url="")))
    monkeypatch.setattr(benchmark_front, "measure_load", measure)
    out = tmp_path / "front.json"
    with pytest.raises(KeyboardInterrupt):
        benchmark_front.main(["--interpreters", "1,2", "--out", str(out)])
    assert [each["interpreters"] for each in json.loads(out.read_text())["records"]] == [1]


@pytest.mark.parametrize("option", ["--streams", "--tokens", "--decoders", "--rounds"])
def test_bad_input_is_one_clear_line(option):
    with pytest.raises(UserError, match=f"{option}: 0, expected a positive integer"):
        benchmark.main(["front", option, "0"])


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_pace_that_is_none_is_one_clear_line(value):
    with pytest.raises(UserError, match=f"--token-ms: {value}, expected a positive number, at most 60,000"):
        benchmark.main(["front", "--token-ms", value])


@pytest.mark.parametrize("value", ["0", "1,999"])
def test_numbers_of_interpreters_that_cannot_be_are_one_clear_line(value):
    with pytest.raises(UserError, match=f"--interpreters: {value}, expected integers from 1 to 64"):
        benchmark.main(["front", "--interpreters", value])
