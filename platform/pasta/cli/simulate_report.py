"""The report of a simulation, in words and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from pasta.markdown import markdown
from pasta.simulation.calibration import Calibration
from pasta.simulation.compare import Deviation
from pasta.simulation.config import SimulateConfig
from pasta.simulation.study import Crossover, Point, Size, StudyResults, goal_value


def simulation_text(
    config: SimulateConfig,
    results: StudyResults,
    about: Mapping[str, float],
    calibration: Calibration | None,
    deviations: Sequence[Deviation],
    pictures: Sequence[str],
    unit: str,
    fitted: Mapping[str, float],
) -> str:
    """The report as Markdown. ``about`` describes the trace, ``unit`` is what loads are counted in; ``fitted`` are the
    keys of ``cluster`` whose values were fitted to what was measured."""
    parts = [f"# {config.name}: simulated", _basis(config, about, calibration)]
    parts += [f"![]({picture})" for picture in pictures]
    if results.sizes:
        parts += ["## How many", _sizes(config, results.sizes), _size_table(config, results.sizes)]
    if results.crossovers:
        parts += ["## Where parallel decoding stops paying"]
        parts += ["\n".join(f"- {_crossing(found, unit)}" for found in results.crossovers)]
        parts += [_speedup_table(results.crossovers, unit)]
    if results.points:
        parts += ["## Under load", _load_table(config, results.points, unit)]
    if deviations:
        parts += ["## Against what was measured", _deviation_table(deviations)]
    if fitted:
        values = ", ".join(f"cluster.{name} = {value:.4g}" for name, value in fitted.items())
        parts += [f"Fitted to the blocks marked so, the others are predicted: {values}."]
    if notes := _notes(results, about):
        parts += ["## What to know", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts)


def _basis(config: SimulateConfig, about: Mapping[str, float], calibration: Calibration | None) -> str:
    engine, cluster = config.engine, config.cluster
    lines = [
        f"{about['answers']:.0f} answers: {about['prompt_tokens']:.0f} tokens of prompt, "
        f"{about['plain_tokens']:.0f} of answer, {about['threads']:.1f} threads on average; theoretical speedup "
        f"{about['theoretical_speedup']:.2f} (tokens counted with {config.trace.tokenizer}).",
        f"A replica decodes {engine.num_slots} requests at once, each within {engine.slot_tokens} tokens, and "
        f"prefills {engine.prefill_chunk} tokens a step. Between Interpreter and Decoder a message takes "
        f"{1e3 * cluster.hop_s:g} ms.",
    ]
    if calibration is None:
        lines.append(_estimate(config))
    else:
        machine = calibration.machine
        device = machine.get("gpu") or machine.get("processor") or "a machine without a name"
        threads = f"{calibration.threads} thread{'s' if calibration.threads != 1 else ''}"
        lines.append(
            f"Costs of a step as measured: {calibration.model}, {calibration.dtype}, on {device} ({threads}), "
            f"{machine.get('date', 'undated')}. {calibration.note}".strip()
        )
    return "\n".join(lines)


def _estimate(config: SimulateConfig) -> str:
    roof = config.costs.roofline
    assert roof is not None
    read_ms = 1e3 * roof.parameters * roof.bytes_per_value / roof.memory_bytes_s
    return (
        "**A derived estimate, not a measurement.** Costs of a step follow from published data sheets: "
        f"{roof.parameters / 1e9:g}G parameters of {roof.bytes_per_value} bytes at {roof.memory_bytes_s / 1e12:g} TB/s "
        f"are read in {read_ms:.2f} ms; {roof.flops_s / 1e12:g} TFLOP/s. Assumed: "
        f"{roof.bandwidth_efficiency:.0%} of the bandwidth, {roof.compute_efficiency:.0%} of the arithmetic, "
        f"{1e3 * roof.overhead_s:g} ms a forward besides."
    )


def _sizes(config: SimulateConfig, sizes: Sequence[Size]) -> str:
    load, sizing = config.load, config.sizing
    assert sizing is not None
    asked = {
        "users": f"{load.users:,} users who think {load.think_s:g} s between questions" if load.users else "",
        "poisson": f"{load.rate:g} requests a second" if load.rate else "",
        "trace": "The trace's requests",
    }[load.kind]
    goals = ", ".join(f"{name} ≤ {goal:g}" for name, goal in sizing.goals.given.items())
    found = []
    for size in sizes:
        if size.replicas is None:
            found.append(f"{size.series.name}: {sizing.most_replicas} replicas do not reach it")
            continue
        gpus = size.replicas * config.cluster.gpus_per_replica
        many = f" = {gpus:g} GPUs, {24 * gpus:g} GPU hours a day" if gpus else ""
        found.append(
            f"{size.series.name}: **{size.replicas} replica{'s' if size.replicas > 1 else ''}**{many}"
        )
    return f"{asked}, within {goals}:\n\n" + "\n".join(f"- {line}" for line in found)


def _size_table(config: SimulateConfig, sizes: Sequence[Size]) -> str:
    sizing = config.sizing
    assert sizing is not None
    names = [*sizing.goals.given]
    rows = [
        [
            size.series.name,
            point.replicas,
            *(_s(goal_value(point.metrics, name)) for name in names),
            _said(point.metrics.requests_s, ".3g"),
            _said(point.metrics.busy, ".0%"),
            *_gpu_hours(config, point),
            "" if point is not size.point else "no" if size.replicas is None else "**yes**",
        ]
        for size in sizes
        for point in size.tried
    ]
    header = ["", "replicas", *names, "answers a second", "busy", *_gpu_header(config), "chosen"]
    return markdown(header, rows)


def _crossing(found: Crossover, unit: str) -> str:
    name = found.series.name
    if not found.speedups:
        return f"{name}: nothing to compare, at no load do it and sequential decoding both keep up."
    first, last = (next(iter(order)) for order in (found.speedups, reversed(found.speedups)))
    told = f"{name}: {found.speedups[first]:.2f} times as fast at {first:g} {unit}"
    if found.until is None:
        still = f", still {found.speedups[last]:.2f} times at {last:g}" if last != first else ""
        told += f"{still}, the largest load at which both keep up"
    elif found.until == first:
        told += ": it does not pay at all here"
    else:
        told += f", no faster from {found.until:.3g} on"
    if found.throughput is None:
        return f"{told}."
    return f"{told}. Most answers a second: {found.throughput:.2f} of sequential decoding's."


def _speedup_table(crossovers: Sequence[Crossover], unit: str) -> str:
    loads = sorted({load for found in crossovers for load in found.speedups})
    rows = [
        [
            f"{load:g}",
            *(f"{found.speedups[load]:.2f}" if load in found.speedups else "" for found in crossovers),
        ]
        for load in loads
    ]
    return markdown([unit, *(found.series.name for found in crossovers)], rows)


def _load_table(config: SimulateConfig, points: Sequence[Point], unit: str) -> str:
    rows: list[list[Any]] = []
    for point in points:
        metrics = point.metrics
        rows.append(
            [
                point.series.name,
                f"{point.load:g}",
                _s(metrics.ttft_s.p50),
                _s(metrics.ttft_s.p95),
                _s(metrics.total_s.p50),
                _s(metrics.total_s.p95),
                f"{1e3 * metrics.token_s.p50:.3g}",
                _said(metrics.requests_s, ".3g"),
                _said(metrics.plain_tokens_s, ".4g"),
                _said(metrics.lanes, ".1f"),
                f"{metrics.fill:.0%}",
                _said(metrics.busy, ".0%"),
                *_gpu_hours(config, point),
                "yes" if metrics.keeps_up else "**no**",
            ]
        )
    header = ["", unit, "first token, s", "95th", "end, s", "95th", "ms a token", "answers a second"]
    header += ["tokens a second", "lanes a step", "filled", "busy", *_gpu_header(config), "keeps up"]
    return markdown(header, rows)


def _deviation_table(deviations: Sequence[Deviation]) -> str:
    rows = [
        [
            found.metric,
            f"{found.measured:.4g}",
            f"{found.simulated:.4g}",
            f"{found.ratio:.2f}",
            f"{found.tolerance:.0%}",
            "yes" if found.within else "**no**",
            "fitted" if found.fitted else "",
        ]
        for found in deviations
    ]
    return markdown(["figure", "measured", "simulated", "ratio", "tolerance", "within", ""], rows)


def _notes(results: StudyResults, about: Mapping[str, float]) -> list[str]:
    notes = []
    points = [*results.points, *(point for size in results.sizes for point in size.tried)]
    behind = sum(not point.metrics.keeps_up for point in points)
    if behind:
        notes.append(
            f"{behind} of {len(points)} runs do not keep up: requests come faster than they are answered, and their "
            "latencies only say how long they were watched."
        )
    beyond = [point for point in points if point.metrics.covered < 1]
    if beyond:
        worst = min(beyond, key=lambda point: point.metrics.covered)
        requests, lanes, keys = worst.metrics.largest
        notes.append(
            f"In {len(beyond)} of {len(points)} runs some steps lie beyond what was calibrated (in one of them "
            f"{1 - worst.metrics.covered:.1%}, up to {requests} requests of {lanes:.3g} lanes and {keys} cached "
            "tokens): their costs are extrapolated."
        )
    short = sum(point.metrics.requests_s is None for point in points)
    if short:
        notes.append(
            f"{short} of {len(points)} runs are too short for some figures, which are empty: no answer ends between "
            "the first and the last of their requests. Give more requests."
        )
    if about["left_out"]:
        notes.append(
            f"{about['left_out']:.0f} answers of the trace are left out: too long for a slot, not to be "
            "encoded, or skipped; figures.json says which."
        )
    return notes


def _gpu_header(config: SimulateConfig) -> list[str]:
    return ["GPU hours for 1,000"] if config.cluster.gpus_per_replica else []


def _gpu_hours(config: SimulateConfig, point: Point) -> list[str]:
    return [_said(point.metrics.gpu_hours_1000, ".3g")] if config.cluster.gpus_per_replica else []


def _said(value: float | None, form: str) -> str:
    """A cell: empty for what a run cannot say."""
    return "" if value is None else format(value, form)


def _s(seconds: float) -> str:
    return f"{seconds:.3g}"
