"""``pasta alpaca`` on the command line; tests that need AlpacaEval's published files skip without them."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from pasta.cli.commands import run
from pasta.errors import UserError
from tests.support.evaluations import answer, cut_short, prompt, write_evaluation
from tests.support.paths import ROOT

ALPACA_EVAL = Path(os.environ.get("PASTA_ALPACA_EVAL", ROOT.parent / "shared" / "data" / "alpaca_eval"))
ANNOTATIONS = ALPACA_EVAL / "gemma-7b-it.annotations.json"
needs_files = pytest.mark.skipif(not ANNOTATIONS.is_file(), reason="needs AlpacaEval's published files")


@pytest.mark.slow
@needs_files
def test_win_rates_of_annotations_are_printed_under_their_names(capsys):
    assert run(["alpaca", "annotations", str(ANNOTATIONS)]) == 0
    out = capsys.readouterr().out
    assert "gemma-7b-it against gpt4_1106_preview: 805 verdicts, 0 invalid" in out
    assert "win rate            6.94% (5.48 to 8.50), standard error 0.79" in out
    assert "length-controlled   12.97% (" in out
    assert "without AlpacaEval's difficulty term: not the official figure" in out


@pytest.mark.slow
@needs_files
def test_json_has_every_digit(capsys):
    assert run(["alpaca", "annotations", str(ANNOTATIONS), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["win_rate"] == 6.937294379677018
    assert "length_controlled_without_difficulty" in values
    assert "official_length_controlled" not in values


@pytest.mark.slow
@needs_files
@pytest.mark.skipif(importlib.util.find_spec("alpaca_eval") is not None, reason="alpaca_eval is installed")
def test_an_official_figure_that_cannot_be_had_is_one_line_after_the_others(capsys):
    with pytest.raises(UserError, match=r"^--official: the package alpaca_eval is not installed"):
        run(["alpaca", "annotations", str(ANNOTATIONS), "--official"])
    assert "6.94%" in capsys.readouterr().out


def test_answers_are_exported(tmp_path, capsys):
    records = [prompt(key, {"twin": answer("x"), "pasta": answer(f"{key}!")}) for key in ("tea", "ice")]
    place, out = write_evaluation(tmp_path / "e", records), tmp_path / "new" / "pasta.json"
    assert run(["alpaca", "export", str(place), "pasta", "--out", str(out), "--generator", "mine"]) == 0
    assert [(row["output"], row["generator"]) for row in json.loads(out.read_text())] == [
        ("tea!", "mine"),
        ("ice!", "mine"),
    ]
    said = capsys.readouterr().out
    assert "they are not AlpacaEval's 805" in said
    assert "not finished" not in said


def test_an_export_of_what_is_there_so_far_says_so(tmp_path, capsys):
    records = [prompt("tea", {"twin": answer(), "pasta": answer()})]
    place = write_evaluation(tmp_path / "e", records, finished=False)
    assert run(["alpaca", "export", str(place), "pasta", "--out", str(tmp_path / "out.json")]) == 0
    assert f"{place}: not finished; what is there is exported\n" in capsys.readouterr().out


def test_an_export_to_standard_output_is_the_json_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = write_evaluation(tmp_path / "e", [prompt("tea", {"pasta": answer("é")})], finished=False)
    assert run(["alpaca", "export", str(place), "pasta", "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert [row["output"] for row in json.loads(printed.out)] == ["é"]
    assert "not finished; what is there is exported" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_an_export_without_answers_that_were_there_says_so(tmp_path, capsys):
    records = [prompt(key, {"pasta": answer()}) for key in ("tea", "ice", "jam")]
    place = write_evaluation(tmp_path / "e", records)
    cut_short(place, "answers.jsonl")
    assert run(["alpaca", "export", str(place), "pasta", "--out", str(tmp_path / "out.json")]) == 0
    said = f"{place}: the answers to 1 of 3 prompts are gone; what is there is exported\n"
    assert said in capsys.readouterr().out


def test_a_mistake_is_one_line_and_leaves_no_file(tmp_path):
    place = write_evaluation(tmp_path / "e", [prompt("tea", {"twin": answer()})])
    with pytest.raises(UserError, match="no method 'pasta'; it has twin"):
        run(["alpaca", "export", str(place), "pasta", "--out", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()
