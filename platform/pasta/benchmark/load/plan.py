"""All scenarios of a measurement under load: the service that each needs, how it is measured and reported."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pasta.benchmark.load import breakdown, hostile, peer, report, scenarios, soak
from pasta.benchmark.load.scenarios import Bench
from pasta.benchmark.load.settings import HOSTILE, PEER, SOAK, LoadSettings
from pasta.benchmark.metrics import Found
from pasta.stages.records import Record

#: The service as it is configured; with one decoder, like the bare engine; with a budget that one answer fills; behind
#: a proxy, which takes requests while the one Gateway is started again.
Layout = Literal["as configured", "one decoder", "small budget", "behind a proxy"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: ``measure`` makes the record of each of its ``keys``, ``report`` turns the records into metrics.

    A key that has a record already is not measured again. ``settings`` are those that a record depends on.
    ``own_service``: the scenario changes the service's configuration or kills its processes. ``violations`` says what
    in the records must not be, a line each. ``draw`` makes a picture of them.
    """

    layout: Layout
    keys: Callable[[LoadSettings], list[str]]
    measure: Callable[[Bench, str], Awaitable[Record]]
    report: Callable[[Sequence[Record]], Found]
    settings: tuple[str, ...] = ()
    own_service: bool = False
    violations: Callable[[Sequence[Record]], list[str]] = lambda _: []
    draw: Callable[[Sequence[Record], Path], None] | None = None


def _pairs(settings: LoadSettings) -> list[str]:
    return [str(number) for number in range(settings.pairs)]


def _rounds(settings: LoadSettings) -> list[str]:
    return [str(number) for number in range(settings.rounds)]


def _once(_: LoadSettings) -> list[str]:
    return ["0"]


_SOAK_SETTINGS = ("soak", "soak_s", "soak_clients", "soak_seed", "kill_every_s", "timeout_s")

#: In the order in which they are measured. All depend on ``max_tokens``.
PLAN: dict[str, Scenario] = {
    "latency": Scenario(
        "as configured", scenarios.latency_keys, scenarios.latency, report.latency_report, ("prompts",)
    ),
    "breakdown": Scenario(
        "as configured",
        _pairs,
        breakdown.breakdown,
        breakdown.breakdown_report,
        draw=breakdown.draw_breakdown,
    ),
    "spread": Scenario("as configured", _pairs, scenarios.spread, report.spread_report),
    "disconnect": Scenario("as configured", _pairs, scenarios.disconnect, report.disconnect_report),
    "kill": Scenario("as configured", _rounds, scenarios.killed, report.kill_report, own_service=True),
    SOAK: Scenario(
        "behind a proxy", _once, soak.soak, report.soak_report, _SOAK_SETTINGS, violations=soak.violations
    ),
    HOSTILE: Scenario(
        "as configured",
        hostile.hostile_keys,
        hostile.hostile,
        report.hostile_report,
        ("hostile", "hostile_seed", "timeout_s"),
        violations=hostile.hostile_violations,
    ),
    PEER: Scenario(
        "as configured",
        peer.peer_keys,
        peer.beside_peer,
        peer.peer_report,
        ("prompts", "peer", "peer_model", "turns", "think_s", "held_by"),
        own_service=True,
    ),
    "throughput": Scenario(
        "one decoder",
        scenarios.throughput_keys,
        scenarios.throughput,
        report.throughput_report,
        ("prompts",),
        own_service=True,
    ),
    "speedup": Scenario("one decoder", _pairs, scenarios.speedup, report.speedup_report),
    "refuse": Scenario(
        "small budget", _once, scenarios.refuse, report.refuse_report, ("refusals",), own_service=True
    ),
}
