"""Splits a request's milliseconds into stages: from the client through the service to the lanes of an engine, and back.

With a trace the service reports when each stage began (``serve/observe/trace.py``); the client adds when it sent the
request and had the answer. All run on one machine, whose clock they share.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta.benchmark.load.client import TimedReply
from pasta.benchmark.load.scenarios import Bench, second
from pasta.benchmark.metrics import Found, Metric
from pasta.errors import UserError
from pasta.markdown import markdown
from pasta.simulation.plot import new_figure
from pasta.stages.records import Record
from pasta.statistics import percentile

#: The stages in their order, and who has the request in them.
STAGES = {
    "to the Gateway": "messages",
    "body": "Gateway",
    "to the Interpreter": "messages",
    "admission": "Interpreter",
    "encoding": "Interpreter",
    "to the Decoder": "messages",
    "queue": "Decoder",
    "prefill": "Decoder",
    "steps": "Decoder",
    "from the Decoder": "messages",
    "to the client": "Gateway, messages",
}
#: Stages in which the engine computes.
ENGINE = ("prefill", "steps")
#: Okabe and Ito's hues, told apart with any colour vision, and greys for what is on its way.
_COLOURS = {
    "Gateway": "#E69F00",
    "Interpreter": "#CC79A7",
    "Decoder": "#0072B2",
    "messages": "#BBBBBB",
    "Gateway, messages": "#8C6D1F",
}


async def breakdown(bench: Bench, key: str) -> Record:
    """Milliseconds of each stage of a prompt's request, alone, sequential and parallel."""
    prompt = bench.independent[int(key)]
    return {
        way: stages(await second(bench, bench.asks(way, [prompt], trace=True)[0]))
        for way in ("sequential", "parallel")
    }


def stages(reply: TimedReply) -> dict[str, float]:
    """Milliseconds of each of ``STAGES`` of an answer with a trace. Raises ``UserError`` if it has none."""
    try:
        marks = [("to the Gateway", reply.sent_at), *reply.pasta["trace"]["otherData"]["marks"]]
        timings = reply.pasta["timings"]
    except LookupError:
        raise UserError("breakdown: the service's traces do not say when each stage began") from None
    spent = {stage: 1e3 * (marks[n + 1][1] - at) for n, (stage, at) in enumerate(marks[:-1])}
    decoding = spent.pop("decoding")
    spent["queue"], spent["prefill"] = timings["queue_ms"], timings["ttft_ms"] - timings["queue_ms"]
    spent["steps"] = max(0.0, decoding - timings["ttft_ms"])
    spent["to the client"] = 1e3 * (reply.sent_at + reply.total_s - marks[-1][1])
    return {stage: round(spent[stage], 3) for stage in STAGES}


def breakdown_report(records: Sequence[Record]) -> Found:
    """The median of each stage, and of what the service adds to the engine's time."""
    rows, metrics = [], []
    shown = medians(records)
    for stage, who in STAGES.items():
        rows.append([stage, who, *(f"{shown[way][stage]:.2f}" for way in shown)])
    for way in shown:
        added = [
            sum(record[way].values()) - sum(record[way][stage] for stage in ENGINE) for record in records
        ]
        label = f"a request alone, all but the engine's prefill and steps, ms, median, {way}"
        metrics.append(Metric(f"serve.breakdown.{way}", label, percentile(added, 0.5), count=len(added)))
    return metrics, {"Where a request's milliseconds go": markdown(["stage", "where", *shown], rows)}


def medians(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Milliseconds of each stage, by way."""
    return {
        way: {stage: statistics.median(record[way][stage] for record in records) for stage in STAGES}
        for way in ("sequential", "parallel")
    }


def draw_breakdown(records: Sequence[Record], path: Path) -> None:
    """Each way's stages in a row: all of them, and below all but the engine's, on a scale of their own."""
    shown = medians(records)
    title = "Where a request's milliseconds go (medians, one request at a time)"
    with new_figure(path, 9.0, 1.1 * 2 * len(shown) + 1.2, title) as figure:
        panels = figure.subplots(2, 1)
        named: dict[str, Any] = {}
        for axes, left_out in zip(panels, ((), ENGINE), strict=True):
            for row, spent in enumerate(shown.values()):
                since = 0.0
                for stage, who in STAGES.items():
                    if stage in left_out:
                        continue
                    drawn = axes.barh(
                        row, spent[stage], left=since, color=_COLOURS[who], edgecolor="white", lw=0.6
                    )
                    named.setdefault(who, drawn)
                    since += spent[stage]
                axes.text(since, row, f" {since:.1f} ms", va="center", fontsize=8)
            axes.set_yticks(range(len(shown)), [*shown])
            axes.invert_yaxis()
            axes.margins(x=0.1)
            axes.set_xlabel("ms" if not left_out else "ms, all but prefill and steps")
        _name(panels[1], next(iter(shown.values())))
        figure.legend([*named.values()], [*named], loc="outside lower center", ncols=len(named))


def _name(axes: Any, spent: Mapping[str, float]) -> None:
    """Write the stages' names over the first bar, those that are wide enough."""
    whole, since = sum(spent[stage] for stage in STAGES if stage not in ENGINE), 0.0
    for stage in STAGES:
        if stage in ENGINE:
            continue
        if spent[stage] > 0.06 * whole:
            axes.text(since + spent[stage] / 2, -0.48, stage, ha="center", va="bottom", fontsize=7)
        since += spent[stage]
