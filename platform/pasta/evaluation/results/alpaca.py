"""Reads and checks AlpacaEval's files, and writes an evaluation's answers for AlpacaEval's own tool.

    outputs      JSON array of {"instruction", "output", "generator"}: a model's answers
    annotations  JSON array of {"instruction", "output_1", "generator_1", "output_2", "generator_2", "preference"}:
                 1 prefers output_1 (the reference model's), 2 output_2, anything between is the judge's uncertainty

A published win rate is one over all 805 instructions, each once: files with fewer, repeated or other rows are refused.
"""

import hashlib
import importlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pasta.errors import UserError, first_line
from pasta.evaluation.results.evaluations import Evaluation
from pasta.evaluation.results.win_rate import Preference, WinRates, win_rates
from pasta.rows import is_number, placed, read_json, short_repr, text_of

#: Files of the package that it reads beside the annotations: data set and file name.
DATA_SET, DATA_FILE = "tatsu-lab/alpaca_eval", "df_gamed.csv"
_TEXTS = ("instruction", "output_1", "generator_1", "output_2", "generator_2")
_DRAW = 1.5
_NAMED_ROWS = 5
#: The first characters of the SHA-256 (hex) of each instruction, in AlpacaEval's order: the instructions themselves are
#: not the project's own.
_DIGESTS = resources.files(__package__).joinpath("alpaca_rows.txt").read_text(encoding="ascii").split()
_ROW_OF = {digest: row for row, digest in enumerate(_DIGESTS)}
NUM_ROWS = len(_ROW_OF)


class OfficialUnavailable(UserError):
    """The official computation cannot run here; the message says what is missing."""


def row_of(instruction: str) -> int | None:
    """The row of an instruction in AlpacaEval, from 0; None if it is not one of its 805."""
    digest = hashlib.sha256(instruction.encode("utf-8", "surrogatepass")).hexdigest()
    return _ROW_OF.get(digest[: len(_DIGESTS[0])])


@dataclass(frozen=True, slots=True)
class Output:
    """One model's answer."""

    instruction: str
    output: str
    generator: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A verdict on two answers: ``preference`` from 1 (the first) to 2 (the second), None where the judge gave none."""

    instruction: str
    output_1: str
    generator_1: str
    output_2: str
    generator_2: str
    preference: float | None


@dataclass(frozen=True, slots=True)
class OfficialWinRate:
    """The package's length-controlled win rate and its standard error, in percent."""

    value: float
    standard_error: float
    version: str


def read_annotations(path: Path) -> list[Annotation]:
    """All 805 annotations of one pair of models, in AlpacaEval's order.

    A preference of 0 is a draw, as AlpacaEval has it. Raises UserError, naming the row, for any other file.
    """
    annotations = []
    for number, row in enumerate(_read_rows(path), start=1):
        with placed(f"{path}: row {number}"):
            texts = {key: text_of(row, key) for key in _TEXTS}
            annotations.append(Annotation(**texts, preference=_preference(row)))
    for key in ("generator_1", "generator_2"):
        _check_one_model(path, key, {getattr(annotation, key) for annotation in annotations})
    order = _order(path, [annotation.instruction for annotation in annotations])
    return [annotations[number] for number in order]


def annotated_win_rates(annotations: Sequence[Annotation]) -> WinRates:
    """The second model's raw and length-controlled win rates (see ``win_rate``). Raises UserError."""
    return win_rates(
        [
            Preference(None if a.preference is None else a.preference - 1, len(a.output_2), len(a.output_1))
            for a in annotations
        ]
    )


def official_win_rate(annotations: Sequence[Annotation]) -> OfficialWinRate:
    """AlpacaEval's own length-controlled win rate, with its difficulty term: the package ``alpaca_eval`` computes it.

    The package looks difficulties up by row number, so ``annotations`` must be ``read_annotations``'. Raises
    OfficialUnavailable if the package is not installed, or its data are neither in the Hub's cache nor to be fetched.
    """
    try:
        package = importlib.import_module("alpaca_eval")
        compute = importlib.import_module("alpaca_eval.metrics").get_length_controlled_winrate
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "alpaca_eval":
            raise OfficialUnavailable(
                "the package alpaca_eval is not installed; pip install alpaca_eval"
            ) from None
        raise OfficialUnavailable(f"alpaca_eval cannot be imported ({first_line(error)})") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's, about arguments the package gives it
            metrics = compute([asdict(a) for a in annotations], save_weights_dir=None)
    except OSError:  # the Hub's errors are
        raise OfficialUnavailable(
            f"{DATA_FILE} of the data set {DATA_SET} is neither in the local cache nor can it be fetched; where the "
            f"Hub can be reached: hf download --repo-type dataset {DATA_SET} {DATA_FILE}"
        ) from None
    except Exception as error:  # incompatible dependencies may raise anything
        raise OfficialUnavailable(
            f"alpaca_eval failed with {type(error).__name__} ({first_line(error)})"
        ) from None
    value, standard_error = metrics["length_controlled_winrate"], metrics["lc_standard_error"]
    return OfficialWinRate(float(value), float(standard_error), str(getattr(package, "__version__", "")))


def outputs_of(evaluation: Evaluation, method: str, generator: str | None = None) -> list[Output]:
    """A method's answers, for AlpacaEval's tool: in its order if the prompts are its 805, else in the evaluation's.

    ``generator`` is its name there, by default the method's. Raises UserError for an unknown method, and for a prompt
    without an answer, which AlpacaEval's tool would leave out of the rate.
    """
    evaluation.require(method)
    outputs = []
    for record in evaluation.answers:
        answer, messages = record["answers"].get(method, {"skipped": "not answered yet"}), record["messages"]
        if "skipped" in answer:
            raise UserError(
                f"{evaluation.directory}: prompt {record['key']}: no answer of {method} ({answer['skipped']})"
            )
        if [turn["role"] for turn in messages] != ["user"]:
            raise UserError(
                f"{evaluation.directory}: prompt {record['key']}: a conversation; AlpacaEval's instructions are one "
                "user's message each"
            )
        outputs.append(Output(messages[0]["content"], answer["text"], generator or method))
    rows = [row_of(output.instruction) for output in outputs]
    known = [row for row in rows if row is not None]
    if sorted(known) == [*range(NUM_ROWS)] and len(rows) == NUM_ROWS:
        return [outputs[rows.index(row)] for row in range(NUM_ROWS)]
    return outputs


def is_complete(outputs: Sequence[Output]) -> bool:
    """Whether these are AlpacaEval's 805 instructions, each once and in its order."""
    return [row_of(output.instruction) for output in outputs] == [*range(NUM_ROWS)]


def outputs_json(outputs: Sequence[Output]) -> str:
    """The text of an outputs file."""
    return json.dumps([asdict(output) for output in outputs], indent=2, ensure_ascii=False) + "\n"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    value = read_json(path, expected="one of AlpacaEval's, a JSON array of objects")
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise UserError(f"{path}: expected a JSON array of objects, one a row")
    return value


def _preference(row: dict[str, Any]) -> float | None:
    if "preference" not in row:
        raise UserError("preference: expected a number from 1 to 2, got no such key")
    value = row["preference"]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if is_number(value):
        if value == 0:
            return _DRAW
        if 1 <= value <= 2:
            return float(value)
    raise UserError(f"preference: expected a number from 1 to 2 (0: a draw), got {short_repr(value)}")


def _check_one_model(path: Path, key: str, names: set[str]) -> None:
    if len(names) > 1:
        named = ", ".join(sorted(names)[:_NAMED_ROWS])
        raise UserError(f"{path}: {key}: rows of {len(names)} models ({named}); expected one model's")


def _order(path: Path, instructions: Sequence[str]) -> list[int]:
    """Where each row of AlpacaEval stands among ``instructions``. Raises UserError unless each is there once."""
    place: dict[int, int] = {}
    foreign = [number for number, text in enumerate(instructions) if row_of(text) is None]
    if foreign:
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        raise UserError(
            f"{path}: row {foreign[0] + 1} is none of AlpacaEval's {NUM_ROWS} instructions: "
            f"{short_repr(instructions[foreign[0]])}{more}"
        )
    for number, text in enumerate(instructions):
        row = row_of(text)
        assert row is not None, "a foreign row is refused above"
        if row in place:
            raise UserError(f"{path}: row {number + 1} repeats row {place[row] + 1}: {short_repr(text)}")
        place[row] = number
    if len(place) < NUM_ROWS:
        missing = [row for row in range(NUM_ROWS) if row not in place]
        named = ", ".join(str(row + 1) for row in missing[:_NAMED_ROWS])
        raise UserError(
            f"{path}: {len(place)} of AlpacaEval's {NUM_ROWS} rows, and a win rate over fewer is another quantity; "
            f"missing are its rows {named}{', …' if len(missing) > _NAMED_ROWS else ''}"
        )
    return [place[row] for row in range(NUM_ROWS)]
