"""The parts of a measurement under load: the service that each needs, its records, and what follows from them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pasta.benchmark.load import parts, report, soak
from pasta.benchmark.load.parts import Bench
from pasta.benchmark.load.settings import SOAK, LoadSettings
from pasta.stages.records import Record

#: As it is configured; with one decoder, as the bare engine is one; with a budget that one answer fills.
Layout = Literal["as configured", "one decoder", "small budget"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part. ``keys`` name its records, each of which is measured by itself: more of them are added to those that
    there are. ``settings`` are those that a record depends on.

    ``own_service``: it changes the service's configuration or kills its processes.
    """

    layout: Layout
    keys: Callable[[LoadSettings], list[str]]
    measure: Callable[[Bench, str], Awaitable[Record]]
    report: Callable[[Sequence[Record]], report.Report]
    settings: tuple[str, ...] = ()
    own_service: bool = False


def _pairs(settings: LoadSettings) -> list[str]:
    return [str(number) for number in range(settings.pairs)]


def _rounds(settings: LoadSettings) -> list[str]:
    return [str(number) for number in range(settings.rounds)]


def _once(_: LoadSettings) -> list[str]:
    return ["0"]


_SOAK_SETTINGS = ("soak", "soak_clients", "soak_seed", "kill_every_s", "timeout_s")

#: In the order in which they are measured. All depend on the longest answer.
PLAN: dict[str, Part] = {
    "latency": Part("as configured", parts.latency_keys, parts.latency, report.latency_report, ("prompts",)),
    "spread": Part("as configured", _pairs, parts.spread, report.spread_report),
    "disconnect": Part("as configured", _pairs, parts.disconnect, report.disconnect_report),
    "kill": Part("as configured", _rounds, parts.killed, report.kill_report, own_service=True),
    SOAK: Part("as configured", _once, soak.soak, report.soak_report, _SOAK_SETTINGS),
    "throughput": Part(
        "one decoder",
        parts.throughput_keys,
        parts.throughput,
        report.throughput_report,
        ("prompts",),
        own_service=True,
    ),
    "speedup": Part("one decoder", _pairs, parts.speedup, report.speedup_report),
    "refuse": Part(
        "small budget", _once, parts.refuse, report.refuse_report, ("refusals",), own_service=True
    ),
}
