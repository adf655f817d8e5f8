"""AlpacaEval's files. Tests that need the published ones skip without them (``PASTA_ALPACA_EVAL`` says where)."""

import importlib.util
import json
import os
import sys
import types
from dataclasses import asdict
from pathlib import Path

import pytest

from pasta.errors import UserError
from pasta.evaluation.results.alpaca import (
    NUM_ROWS,
    OfficialUnavailable,
    Output,
    annotated_win_rates,
    is_complete,
    official_win_rate,
    outputs_json,
    outputs_of,
    read_annotations,
    row_of,
)
from pasta.evaluation.results.evaluations import read_evaluation
from tests.support.evaluations import answer, prompt, write_evaluation
from tests.support.paths import ROOT

ALPACA_EVAL = Path(os.environ.get("PASTA_ALPACA_EVAL", ROOT.parent / "shared" / "data" / "alpaca_eval"))
ANNOTATIONS = ALPACA_EVAL / "gemma-7b-it.annotations.json"
OUTPUTS = ALPACA_EVAL / "gemma-7b-it.outputs.json"
needs_files = pytest.mark.skipif(not ANNOTATIONS.is_file(), reason="needs AlpacaEval's published files")


@pytest.fixture
def rows():
    return json.loads(ANNOTATIONS.read_text())


@pytest.fixture
def write(tmp_path):
    def write(value):
        path = tmp_path / "file.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def refused(read, path):
    """The one line with which a file is refused."""
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.slow
@needs_files
def test_all_win_rates_of_published_annotations():
    rates = annotated_win_rates(read_annotations(ANNOTATIONS))
    assert rates.raw.value == 6.937294379677018
    assert rates.standard_error == pytest.approx(0.7869665731853178)  # the package's
    # scikit-learn's logistic regression without a penalty, on the same two columns.
    assert rates.length_controlled_without_difficulty.value == pytest.approx(12.97274664)
    assert rates.length_effect == pytest.approx(1.54271859)


@needs_files
def test_the_order_of_rows_does_not_count(rows, write):
    assert read_annotations(write(rows[::-1])) == read_annotations(ANNOTATIONS)


@needs_files
def test_fewer_rows_are_refused(rows, write):
    message = refused(read_annotations, write(rows[1:]))
    assert "804 of AlpacaEval's 805 rows" in message
    assert message.endswith("missing are its rows 1")


@needs_files
def test_a_repeated_row_is_refused(rows, write):
    message = refused(read_annotations, write([*rows, rows[3]]))
    assert "row 806 repeats row 4: " in message


@needs_files
def test_a_foreign_row_is_refused(rows, write):
    message = refused(read_annotations, write([rows[0], {**rows[1], "instruction": "Hi?"}, *rows[2:]]))
    assert message.endswith("row 2 is none of AlpacaEval's 805 instructions: 'Hi?'")


@needs_files
def test_a_mixture_of_models_is_refused(rows, write):
    message = refused(read_annotations, write([{**rows[0], "generator_2": "other"}, *rows[1:]]))
    assert "generator_2: rows of 2 models (gemma-7b-it, other)" in message


@pytest.mark.slow
@needs_files
def test_invalid_preferences_are_counted_and_a_draw_is_half_a_win(rows, write):
    given = [{**rows[0], "preference": None}, {**rows[1], "preference": 0}, *rows[2:]]
    annotations = read_annotations(write(given))
    assert [a.preference for a in annotations[:2]] == [None, 1.5]
    rates = annotated_win_rates(annotations)
    assert (rates.count, rates.invalid) == (804, 1)
    valid = [a.preference - 1 for a in annotations if a.preference is not None]
    assert rates.raw.value == pytest.approx(100 * sum(valid) / 804)


ROW = {
    "instruction": "How did US states get their names?",
    "output_1": "a",
    "generator_1": "x",
    "output_2": "b",
    "generator_2": "y",
    "preference": 1.5,
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{", "not JSON"),
        ({}, "expected a JSON array of objects"),
        ([1], "expected a JSON array of objects"),
        ([{**ROW, "preference": 3}], "row 1: preference: expected a number from 1 to 2 (0: a draw), got 3"),
        (
            [{**ROW, "preference": True}],
            "row 1: preference: expected a number from 1 to 2 (0: a draw), got True",
        ),
        (
            [{k: v for k, v in ROW.items() if k != "preference"}],
            "row 1: preference: expected a number from 1 to",
        ),
        ([ROW, {**ROW, "output_2": 3}], "row 2: output_2: expected a string, got a number"),
        ([ROW, {"instruction": "x"}], "row 2: output_1: expected a string, got no such key"),
        ([ROW], "1 of AlpacaEval's 805 rows"),
        ([], "0 of AlpacaEval's 805 rows"),
    ],
)
def test_a_file_of_another_form_is_refused(write, value, expected):
    assert expected in refused(read_annotations, write(value))


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in refused(read_annotations, tmp_path / "none.json")


def test_instructions_are_known_by_their_text():
    assert row_of("How did US states get their names?") == 1
    assert row_of("How did US states get their names? ") is None
    assert NUM_ROWS == 805


# -- the official computation ---------------------------------------------------------------------------


@pytest.fixture
def package(monkeypatch):
    """Stands in for the package alpaca_eval: ``package(compute)`` makes it compute so."""

    def package(compute):
        found, metrics = types.ModuleType("alpaca_eval"), types.ModuleType("alpaca_eval.metrics")
        found.__version__ = "0.6.6"
        metrics.get_length_controlled_winrate = compute
        monkeypatch.setitem(sys.modules, "alpaca_eval", found)
        monkeypatch.setitem(sys.modules, "alpaca_eval.metrics", metrics)

    return package


@needs_files
def test_the_package_is_given_all_rows_in_order_and_saves_no_weights(package):
    asked = {}

    def compute(annotations, **options):
        asked.update(options, rows=[row_of(a["instruction"]) for a in annotations], keys={*annotations[0]})
        return {"length_controlled_winrate": 10.4, "lc_standard_error": 0.1}

    package(compute)
    found = official_win_rate(read_annotations(ANNOTATIONS))
    assert (found.value, found.standard_error, found.version) == (10.4, 0.1, "0.6.6")
    assert asked["rows"] == [*range(805)]
    assert asked["save_weights_dir"] is None
    assert asked["keys"] >= {"output_1", "output_2", "generator_1", "generator_2", "preference"}


@pytest.mark.skipif(importlib.util.find_spec("alpaca_eval") is not None, reason="alpaca_eval is installed")
def test_without_the_package_it_says_so():
    with pytest.raises(OfficialUnavailable, match=r"alpaca_eval is not installed; pip install alpaca_eval"):
        official_win_rate([])


def test_without_its_data_it_says_which(package):
    def compute(annotations, **options):
        raise FileNotFoundError(
            "cannot find the requested files in the local cache"
        )  # as the Hub's errors are

    package(compute)
    with pytest.raises(OfficialUnavailable, match=r"df_gamed\.csv of the data set tatsu-lab/alpaca_eval"):
        official_win_rate([])


def test_a_failure_of_the_package_is_one_line(package):
    def compute(annotations, **options):
        raise TypeError("unexpected keyword\nmore")

    package(compute)
    with pytest.raises(OfficialUnavailable) as caught:
        official_win_rate([])
    assert str(caught.value) == "alpaca_eval failed with TypeError (unexpected keyword)"


# -- an evaluation's answers ----------------------------------------------------------------------------


def test_answers_are_exported_for_its_tool(tmp_path):
    records = [prompt(key, {"twin": answer("x"), "pasta": answer(f"About {key}.")}) for key in ("b", "a")]
    outputs = outputs_of(read_evaluation(write_evaluation(tmp_path / "e", records)), "pasta", "pasta-gemma")
    assert json.loads(outputs_json(outputs)) == [
        {"instruction": "Tell me about b.", "output": "About b.", "generator": "pasta-gemma"},
        {"instruction": "Tell me about a.", "output": "About a.", "generator": "pasta-gemma"},
    ]
    assert not is_complete(outputs)


@needs_files
def test_alpaca_eval_s_own_prompts_are_exported_in_its_order(tmp_path):
    rows = sorted(json.loads(OUTPUTS.read_text()), key=lambda row: row_of(row["instruction"]))
    published = [Output(row["instruction"], row["output"], row["generator"]) for row in rows]
    records = [
        prompt(str(number), {"twin": answer(o.output)}, o.instruction) for number, o in enumerate(published)
    ]
    evaluation = read_evaluation(write_evaluation(tmp_path / "e", records[::-1]))
    outputs = outputs_of(evaluation, "twin", "gemma-7b-it")
    assert json.loads(outputs_json(outputs)) == [asdict(output) for output in published]
    assert is_complete(outputs)
    assert [asdict(output)["generator"] for output in outputs_of(evaluation, "twin")] == ["twin"] * 805


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"pasta": {"skipped": "too long"}}, "prompt a: no answer of pasta (too long)"),
        ({"twin": answer()}, "prompt a: no answer of pasta (not answered yet)"),
    ],
)
def test_a_prompt_without_an_answer_is_named(tmp_path, answers, expected):
    place = write_evaluation(tmp_path / "e", [prompt("a", answers)], methods={"twin": {}, "pasta": {}})
    with pytest.raises(UserError) as caught:
        outputs_of(read_evaluation(place), "pasta")
    assert str(caught.value).endswith(expected)


def test_a_conversation_is_no_instruction(tmp_path):
    record = prompt("a", {"pasta": answer()})
    record["messages"] = [{"role": "system", "content": "Be brief."}, *record["messages"]]
    with pytest.raises(UserError, match="prompt a: a conversation"):
        outputs_of(read_evaluation(write_evaluation(tmp_path / "e", [record])), "pasta")
