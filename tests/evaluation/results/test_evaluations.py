"""An evaluation is read back from its files alone, and what is none is one clear line."""

import json
import subprocess
import sys

import pytest

from pasta.errors import UserError
from pasta.evaluation.methods.answers import Answer
from pasta.evaluation.results.evaluations import read_evaluation
from tests.support.evaluations import answer, cut_short, prompt, write_evaluation

TWO = [prompt(key, {"twin": answer(), "pasta": answer()}) for key in ("a", "b")]


def test_answers_verdicts_and_configuration_are_read(tmp_path):
    place = write_evaluation(
        tmp_path / "e",
        TWO,
        {"a": {"pasta": 0.5}},
        inputs={"methods.pasta.model": "12ab"},
        code_version="c0de",
    )
    evaluation = read_evaluation(place)
    assert [record["key"] for record in evaluation.answers] == ["a", "b"]
    assert evaluation.verdicts[0]["verdicts"] == {"pasta": {"quality": 0.5}}
    assert (evaluation.baseline, evaluation.methods) == ("twin", ["twin", "pasta"])
    assert (evaluation.inputs, evaluation.code_version) == ({"methods.pasta.model": "12ab"}, "c0de")


def test_an_answer_whose_tokens_its_endpoint_did_not_count_is_one(tmp_path):
    remote = answer(tokens=0, budget={"text": 0}, critical_path=None, steps=None, threads=[], ttft_s=None)
    place = write_evaluation(tmp_path / "e", [prompt("a", {"twin": answer(), "remote": remote})])
    assert read_evaluation(place).answers[0]["answers"]["remote"]["tokens"] == 0


def test_an_interrupted_one_says_as_much_as_it_has(tmp_path):
    place = write_evaluation(tmp_path / "e", TWO, finished=False)
    with (place / "answers.jsonl").open("a") as file:
        file.write('{"key": "c", "mess')
    evaluation = read_evaluation(place)
    assert (len(evaluation.answers), evaluation.verdicts, evaluation.baseline) == (2, (), "twin")


def test_what_a_finished_one_has_lost_is_known(tmp_path):
    place = write_evaluation(tmp_path / "e", TWO, {"a": {}, "b": {}}, judge={"kind": "grader"})
    assert read_evaluation(place).lacks(verdicts=True) == []
    cut_short(place, "verdicts.jsonl")
    assert read_evaluation(place).lacks(verdicts=True) == ["the verdicts on 1 of 2 prompts are gone"]
    assert read_evaluation(place).lacks() == []
    cut_short(place, "answers.jsonl")
    assert read_evaluation(place).lacks(verdicts=True) == ["the answers to 1 of 2 prompts are gone"]


@pytest.mark.parametrize("figures", [[], {"prompts": "two"}])
def test_a_manifest_with_other_figures_is_one_line(tmp_path, figures):
    place = write_evaluation(tmp_path / "e", TWO)
    (place / "manifest.json").write_text(json.dumps({"figures": figures}))
    with pytest.raises(UserError, match=r"manifest.json: expected the manifest of an evaluation"):
        read_evaluation(place)


def test_reading_changes_nothing(tmp_path):
    place = write_evaluation(tmp_path / "e", TWO, {"a": {"pasta": 0.5}})
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    read_evaluation(place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (None, "answers.jsonl: no such file"),
        ("", "it holds no answers yet"),
        ('{"config": {}}\n', "it holds no answers yet"),
        ("[]\n", "answers.jsonl:1: expected a record of an evaluation"),
        ("{\n\n", "answers.jsonl:1: not JSON"),
        (
            '{"config": {"methods": ["twin"]}}\n',
            "answers.jsonl:1: config.methods: expected an object of objects",
        ),
        ('{"config": {"baseline": 3}}\n', "answers.jsonl:1: config.baseline: expected the name of a method"),
        (json.dumps(prompt("a", {"twin": answer(seconds=3)})) + "\n", "answers.jsonl:1: expected a record"),
        (json.dumps(prompt("a", {"twin": answer(tokens="3")})) + "\n", "answers.jsonl:1: expected a record"),
        (json.dumps(prompt("a", {"twin": answer()}, family=[])) + "\n", "answers.jsonl:1: expected a record"),
        ('{"key": "a", "answers": {}}\n', "answers.jsonl:1: expected a record"),
        (
            '{"config": {}}\n{"key": "a", "messages": [], "answers": {"x": {"text": "y"}}}\n',
            "answers.jsonl:2: expected a record",
        ),
    ],
)
def test_what_is_no_evaluation_is_one_line(tmp_path, lines, expected):
    if lines is not None:
        (tmp_path / "answers.jsonl").write_text(lines)
    with pytest.raises(UserError) as caught:
        read_evaluation(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_directory_and_an_unknown_method_are_named(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        read_evaluation(tmp_path / "none")
    with pytest.raises(UserError, match="no method 'sot'; it has twin, pasta"):
        read_evaluation(write_evaluation(tmp_path / "e", TWO)).require("sot")


def test_the_answers_that_stand_in_here_are_of_the_form_that_is_recorded():
    assert answer().keys() == Answer.__dataclass_fields__.keys()


def test_reading_needs_neither_torch_nor_pydantic():
    code = "import sys, pasta.evaluation.results.evaluations; print(*{'torch', 'pydantic', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
