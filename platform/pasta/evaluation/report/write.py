"""Writes a report to disk and to W&B."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pasta.evaluation.report.families import draw_families
from pasta.evaluation.report.lanes import draw_lanes, featured
from pasta.evaluation.report.pareto import draw_pareto
from pasta.evaluation.report.speed import draw_distribution, draw_groups
from pasta.evaluation.report.style import Canvas, report_style, save
from pasta.evaluation.report.text import CAPTIONS, report_text
from pasta.evaluation.report.tokens import draw_budget
from pasta.evaluation.results.failures import failures_of
from pasta.evaluation.results.outcomes import Outcome, outcomes_of
from pasta.evaluation.results.summary import Summary
from pasta.files import write_whole
from pasta.stages.records import Record, write_json
from pasta.statistics import Estimate
from pasta.tracking import Tracker

REPORT, FIGURES = "report.md", "figures.json"
_LANES = "lanes"  # a directory with a figure for each method
_ESTIMATES = ("realised", "theoretical", "ratio", "quality", "quality_difference")
_COUNTS = ("prompts", "skipped", "cut", "fallbacks", "compared", "judged", "invalid")


def write_report(
    directory: Path,
    summary: Summary,
    records: Iterable[Record],
    verdicts: Iterable[Record],
    *,
    title: str,
    config: Mapping[str, Any],
    machines: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Write the figures (PNG), ``figures.json`` and ``report.md``, each whole or not at all; returns their paths.

    ``records`` and ``verdicts`` are those of ``summary``; ``config`` the evaluation's, as JSON-able values;
    ``machines`` what it was measured on (``benchmark/machine.py``). Pictures of an earlier report are
    replaced. Raises UserError if a file cannot be written.
    """
    outcomes = outcomes_of(records, verdicts, baseline=summary.baseline, methods=summary.methods)
    failures = {
        name: failures_of(members, is_baseline=name == summary.baseline, pairwise=summary.pairwise)
        for name, members in outcomes.items()
    }
    pictures = _draw(directory, summary, outcomes)
    _remove_stale(directory, pictures)
    write_json(
        directory / FIGURES,
        {
            "title": title,
            "machines": list(machines),
            "config": config,
            "summary": asdict(summary),
            "failures": {name: [asdict(entry) for entry in found] for name, found in failures.items()},
            "pictures": pictures,
        },
    )
    text = report_text(summary, outcomes, failures, pictures, title=title, config=config, machines=machines)
    # written last, since it refers to the others
    write_whole(directory / REPORT, text)
    return [*(directory / name for name in pictures), directory / FIGURES, directory / REPORT]


def log_report(tracker: Tracker, summary: Summary, paths: Iterable[Path]) -> None:
    """Record metrics, the table of methods and the figures: ``evaluate/METHOD/METRIC``, ``evaluate/methods``,
    ``evaluate/FIGURE``."""
    metrics: dict[str, float] = {}
    rows = []
    columns = ["method", *_COUNTS]
    columns += [f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")]
    for name, method in summary.methods.items():
        counts = {key: float(getattr(method, key)) for key in _COUNTS}
        estimates: dict[str, Estimate | None] = {key: getattr(method, key) for key in _ESTIMATES}
        known = {key: e.value for key, e in estimates.items() if e is not None}
        metrics |= {f"evaluate/{name}/{key}": value for key, value in (counts | known).items()}
        ends = [
            value for e in estimates.values() for value in ((e.value, e.low, e.high) if e else (None,) * 3)
        ]
        rows.append([name, *counts.values(), *ends])
    tracker.summary(metrics)
    tracker.table("evaluate/methods", columns, rows)
    for path in paths:
        if path.suffix == ".png":
            folder = f"{_LANES}/" if path.parent.name == _LANES else ""
            tracker.image(f"evaluate/{folder}{path.stem}", path)


def _draw(directory: Path, summary: Summary, outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Draw every figure that has data; returns their paths in ``directory``."""
    first = featured(summary)
    figures: dict[str, Callable[[], Canvas | None]] = {
        "pareto.png": lambda: draw_pareto(summary),
        "speedups.png": lambda: draw_distribution(summary, outcomes),
        "speedup_by_length_and_threads.png": lambda: draw_groups(summary),
        "lanes.png": lambda: draw_lanes(summary, outcomes[first], first) if first else None,
        "token_budget.png": lambda: draw_budget(summary),
        "families.png": lambda: draw_families(summary),
    }
    drawn = []
    with report_style():
        for name, draw in figures.items():
            if (canvas := draw()) is not None:
                save(canvas, directory / name)
                drawn.append(name)
        for method in summary.candidates:
            threads = method.structure.threads if method.structure else None
            if not threads or threads <= 1 or method.name == first:
                continue
            if (canvas := draw_lanes(summary, outcomes[method.name], method.name)) is not None:
                name = f"{_LANES}/{_file_name(method.name)}.png"
                while name in drawn:  # a method of almost the same name has it
                    name = f"{name.removesuffix('.png')}_.png"
                save(canvas, directory / name)
                drawn.append(name)
    return drawn


def _remove_stale(directory: Path, pictures: Sequence[str]) -> None:
    """Remove the pictures of an earlier report that this one does not have."""
    earlier = [*CAPTIONS, *(f"{_LANES}/{path.name}" for path in (directory / _LANES).glob("*.png"))]
    for name in earlier:
        if name not in pictures:
            (directory / name).unlink(missing_ok=True)


def _file_name(method: str) -> str:
    """A method's name without characters that have a meaning in paths."""
    return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in method)
