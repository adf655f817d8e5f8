"""The rig of stand-ins: what it starts, and how it says what a token costs."""

import pytest

from jobs import benchmark, benchmark_front
from jobs.benchmark_front import FrontLoad, processor_s, table, with_stand_ins
from pasta.errors import UserError
from serve.config import KeySettings
from serve.launch import read_service_config

LOAD = FrontLoad(streams=300, answers=1, tokens=10, token_ms=5.0, decoders=3)


def test_the_service_has_stand_ins_as_many_interpreters_and_refuses_nothing():
    config = read_service_config(benchmark_front.CONFIG)
    args = with_stand_ins(config, LOAD, 4).args
    assert (args.front.interpreters, args.front.gateways) == (4, 4)
    assert (args.decoder.num_replicas, args.decoder.stand_in_ms) == (3, 5.0)
    assert args.keys == KeySettings()
    assert args.budget_tokens(1) > LOAD.streams * 4096
    assert args.max_ongoing_requests >= LOAD.streams
    assert args.models == config.args.models


def test_processor_time_is_told_by_kind_of_process():
    before = processor_s()
    sum(range(10**6))
    assert processor_s()["client"] > before["client"] > 0


def test_the_table_has_a_row_for_each_number_of_interpreters():
    record = {"tokens_per_s": 1000.4, "processor_us_per_token": {"Interpreter": 51.26, "client": 9.0}}
    rows = table([{"interpreters": n, **record} for n in (1, 2)]).splitlines()
    assert len(rows) == 4
    assert "| 1000 | 51.3 | 0.0 |" in " ".join(rows[-1].split())


@pytest.mark.parametrize("option", ["--streams", "--tokens", "--token-ms", "--decoders"])
def test_bad_input_is_one_clear_line(option):
    with pytest.raises(UserError, match=f"{option}: 0.*, expected a positive number"):
        benchmark.main(["front", option, "0"])
