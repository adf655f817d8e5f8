"""Hostile requests to a real service: none is a server error, none is dropped, none holds the loop."""

import asyncio

from pasta.benchmark.load.bodies import KINDS
from pasta.benchmark.load.client import connect
from pasta.benchmark.load.hostile import hostile, hostile_violations
from pasta.benchmark.load.scenarios import Bench
from pasta.benchmark.load.service import Service
from pasta.benchmark.load.settings import LoadSettings
from pasta.benchmark.load.ways import find_ways


def test_hostile_requests_are_refused_or_answered_and_keep_nobody_waiting(url, tmp_path):
    async def attack():
        async with connect(url) as client:
            settings = LoadSettings(tmp_path, hostile=3 * len(KINDS), timeout_s=60.0)
            ways = find_ways({"pasta-atlas": "parallel"})
            return await hostile(Bench(settings, Service(client), ways, [], [], lambda: None), "0")

    record = asyncio.run(attack())
    assert hostile_violations([record]) == []
    assert record["requests"] == 60
    assert {*record["statuses"]} == {*KINDS}
    assert {status for counts in record["statuses"].values() for status in counts} >= {"200", "400"}
    assert record["busy_ms"] > 0
