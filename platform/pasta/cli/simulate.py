"""``pasta simulate``: latencies under load, and the number of replicas that a load needs."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pasta.cli.simulate_report import simulation_text
from pasta.config import load_config, to_dict
from pasta.data.tokenizers import counting_tokenizer
from pasta.errors import UserError
from pasta.files import check_directory, write_whole
from pasta.lang import Codec
from pasta.rows import placed
from pasta.simulation.blocks import Fit, pick_prompts, read_blocks
from pasta.simulation.calibration import Calibration
from pasta.simulation.compare import Deviation, deviations, read_measured
from pasta.simulation.config import SimulateConfig, TraceSection
from pasta.simulation.plot import LOADS, SIZES, draw_loads, draw_sizes
from pasta.simulation.study import Point, Study, StudyResults
from pasta.simulation.trace import Traced, Workload, make_trace, pick_answers, read_trace
from pasta.stages.records import write_json

REPORT, FIGURES = "report.md", "figures.json"
#: The unit of a load, by its kind.
UNITS = {"poisson": "requests a second", "users": "users", "trace": "times the trace's own speed"}


def simulate(config_file: Path, overrides: Sequence[str], measured: Path | None) -> int:
    """Run the simulations of a file, write the report into its ``output_dir``, print it; returns the exit code.

    ``measured`` is a load to compare with: the benchmark's, block by block, instead of ``load``, or one whose lines,
    if they hold the answers, are the trace. Raises UserError.
    """
    config = load_config(config_file, SimulateConfig, overrides)
    check_directory(config.output_dir, "output_dir")
    say = teller()
    costs, calibration = config.costs.read()
    with placed("--measured"):
        load = None if measured is None else read_blocks(measured)
        real = None if measured is None or load else read_measured(measured, config.trace.field)
    traced = _read(config.trace, measured if real and real.has_answers else None)
    traced = pick_prompts(traced, load.prompts) if load else pick_answers(traced, config.trace)
    trace = _workload(config, traced, say)
    study = Study(config, trace, costs, calibration.overhead_s if calibration else 0.0)
    results, compared, fitted = StudyResults(), list[Deviation](), dict[str, float]()
    if load is not None:
        fit = Fit(study, load.blocks)
        compared = fit.run(lambda line: say(line, True))
        fitted = fit.fitted()
    elif real is not None and (len(study.loads) > 1 or len(study.series) > 1):
        raise UserError(
            "--measured: several runs to compare with, expected one mode, one placement, no sweep"
        )
    else:
        results = study.run(_progress(study, say))
        compared = [] if real is None else deviations(real, results.points[0].metrics)
    print(write_simulation(study, results, calibration, compared, fitted))
    print(f"\nwritten to {config.output_dir}/")
    return 0 if all(found.within for found in compared) else 1


def write_simulation(
    study: Study,
    results: StudyResults,
    calibration: Calibration | None,
    deviations: Sequence[Deviation],
    fitted: Mapping[str, float],
) -> str:
    """Write pictures, metrics and text into the study's directory, each whole or not at all; returns the text.

    ``fitted`` are keys of ``cluster`` whose values come from the measured load."""
    config, unit = study.config, UNITS[study.config.load.kind]
    out, pictures = config.output_dir, []
    kind = "derived estimate" if config.costs.roofline is not None else "simulated"
    replicas = f"{config.cluster.replicas} replica{'s' if config.cluster.replicas != 1 else ''}"
    if results.points and draw_loads(results, unit, f"{config.name}, {kind}, {replicas}", out / LOADS):
        pictures.append(LOADS)
    title = f"{config.name}, {kind}, {getattr(config.load, config.load.swept) or 1:g} {unit}"
    if config.sizing is not None and draw_sizes(results, config.sizing.goals.given, title, out / SIZES):
        pictures.append(SIZES)
    for stale in {LOADS, SIZES} - {*pictures}:
        (out / stale).unlink(missing_ok=True)
    about = study.trace_metrics()
    values: dict[str, Any] = {
        "name": config.name,
        "estimate": config.costs.roofline is not None,
        "config": to_dict(config),
        "trace": about,
        "left_out": study.trace.left_out,
        "calibration": None if calibration is None else asdict(calibration),
        **results.to_dict(),
        "fitted": dict(fitted),
        "compared": [found.to_dict() for found in deviations],
    }
    write_json(out / FIGURES, values)
    text = simulation_text(config, results, about, calibration, deviations, pictures, unit, fitted)
    write_whole(out / REPORT, text + "\n")
    return text


def read_workload(config: SimulateConfig, say: Callable[[str, bool], None]) -> Workload:
    """The answers of a configuration's trace. Raises UserError."""
    return _workload(config, pick_answers(_read(config.trace, None), config.trace), say)


def _workload(config: SimulateConfig, traced: Sequence[Traced], say: Callable[[str, bool], None]) -> Workload:
    say("counting tokens", True)
    # One codec for all documents, unlike those of ``codec_source``: a simulation mixes them.
    codec = Codec(counting_tokenizer(config.trace.tokenizer, "trace.tokenizer"))
    return make_trace(
        traced,
        codec,
        config.engine.slot_tokens,
        lambda done, of: say(f"answers: {done}/{of}", done == of),
    )


def _read(section: TraceSection, measured: Path | None) -> list[Traced]:
    if measured is not None:
        with placed("--measured"):
            return read_trace(measured, section.field, section.method)
    if section.source == "atlas":
        from pasta.data.atlas import heldout_prompts

        assert section.count is not None
        tasks = heldout_prompts(section.count, section.seed)
        return [Traced(task.messages, task.document, f"atlas:{n}") for n, task in enumerate(tasks)]
    with placed("trace.source"):
        return read_trace(Path(section.source), section.field, section.method)


def teller() -> Callable[[str, bool], None]:
    """Return a function that prints progress on stderr; lines that are not ``important`` at most every two seconds."""
    said = 0.0

    def say(text: str, important: bool = False) -> None:
        nonlocal said
        now = time.monotonic()
        if important or now - said >= 2:
            said = now
            print(text, file=sys.stderr, flush=True)

    return say


def _progress(study: Study, say: Callable[[str, bool], None]) -> Callable[[Point], None]:
    total, unit, runs = len(study.loads) * len(study.series), UNITS[study.config.load.kind], 0

    def tell(point: Point) -> None:
        nonlocal runs
        runs += 1
        metrics = point.metrics
        where = f"{point.series.name}, {point.load:g} {unit}, {point.replicas} replicas"
        what = f"median {metrics.total_s.p50:.3g} s, 95th {metrics.total_s.p95:.3g} s"
        counted = f"{runs}/{total}" if runs <= total else "sizing"
        say(f"{counted}: {where}: {what}{'' if metrics.keeps_up else ', does not keep up'}", True)

    return tell
