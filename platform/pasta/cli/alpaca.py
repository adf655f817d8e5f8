"""``pasta alpaca``: win rates of AlpacaEval's annotations, and answers for its own tool."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pasta.errors import UserError
from pasta.evaluation.results.alpaca import (
    OfficialUnavailable,
    annotated_win_rates,
    is_complete,
    official_win_rate,
    outputs_json,
    outputs_of,
    read_annotations,
)
from pasta.evaluation.results.evaluations import read_evaluation
from pasta.evaluation.results.win_rate import WinRate
from pasta.files import write_whole


def annotations(file: Path, *, official: bool, as_json: bool) -> int:
    """Print the win rates of a file of annotations; returns the exit code.

    ``official`` asks the package alpaca_eval for its figure too. Raises UserError, for that after the rest is printed.
    """
    rows = read_annotations(file)
    rates = annotated_win_rates(rows)
    found, missing = None, ""
    if official:
        try:
            found = official_win_rate(rows)
        except OfficialUnavailable as error:
            missing = str(error)
    if as_json:
        values = {"candidate": rows[0].generator_2, "baseline": rows[0].generator_1, **rates.to_record()}
        if found is not None:
            values["official_length_controlled"] = asdict(found)
        print(json.dumps(values, indent=2))
    else:
        print(
            f"{rows[0].generator_2} against {rows[0].generator_1}: {rates.count} verdicts, {rates.invalid} invalid"
        )
        lengths = f"{rates.mean_length:.0f} against {rates.mean_baseline_length:.0f} characters"
        spread = "" if rates.standard_error is None else f", standard error {rates.standard_error:.2f}"
        print(_line("win rate", _rate(rates.raw) + spread))
        print(_line("length-controlled", _rate(rates.length_controlled_without_difficulty)))
        print(_line("", "without AlpacaEval's difficulty term: not the official figure (--official)"))
        if found is not None:
            version = f"alpaca_eval {found.version}".strip()
            print(
                _line(
                    "official", f"{found.value:.2f}%, standard error {found.standard_error:.2f} ({version})"
                )
            )
        print(_line("mean length", lengths))
    if missing:
        raise UserError(f"--official: {missing}")
    return 0


def export(directory: Path, method: str, out: Path, generator: str | None) -> int:
    """Write a method's answers as AlpacaEval's outputs (``-``: to standard output); returns the exit code. Raises
    UserError."""
    evaluation = read_evaluation(directory)
    outputs = outputs_of(evaluation, method, generator)
    told = [f"{directory}: {gap}; what is there is exported" for gap in evaluation.lacks()]
    if not is_complete(outputs):
        told.append(
            "they are not AlpacaEval's 805: compare them with outputs to the same prompts (--reference_outputs)"
        )
    if str(out) == "-":
        sys.stdout.buffer.write(outputs_json(outputs).encode())
        stream = sys.stderr
    else:
        write_whole(out, outputs_json(outputs))
        print(f"{len(outputs)} outputs of {outputs[0].generator} written to {out}")
        stream = sys.stdout
    for line in told:
        print(line, file=stream)
    return 0


def _rate(rate: WinRate) -> str:
    if rate.value is None:
        return f"none ({rate.reason})"
    interval = f"({rate.low:.2f} to {rate.high:.2f})" if rate.low is not None else f"({rate.reason})"
    return f"{rate.value:.2f}% {interval}"


def _line(name: str, value: str) -> str:
    return f"{name:<20}{value}"
