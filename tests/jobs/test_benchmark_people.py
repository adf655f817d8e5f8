"""``jobs.benchmark people``: the share of right answers, of both models, through the front door."""

import json
import shutil

import pytest
import torch

from jobs.benchmark import main
from pasta.errors import UserError
from tests.support.models import save_misfit_heads, tiny

ASKED = {"kind": "describe", "turns": [{"user": "Tell me about iron.", "things": ["iron"], "facts": 2}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory with twin/ and pasta/, of random weights."""
    root = tmp_path_factory.mktemp("people")
    for seed, name in enumerate(("twin", "pasta")):
        loaded = tiny(seed=seed)
        loaded.model.save_pretrained(root / name)
        loaded.tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(ASKED) + "\n")
    return file


def run(models, prompts, out):
    """The command's exit code and the JSON that it wrote."""
    given = ["--models", str(models), "--prompts", str(prompts), "--out", str(out), "--max-tokens", "24"]
    return main(["people", *given]), json.loads(out.read_text())


@pytest.mark.slow
def test_both_models_answer_and_the_shares_are_recorded(models, prompts, tmp_path, capsys):
    code, written = run(models, prompts, tmp_path / "people.json")
    assert code == 0
    talks = written["conversations"]
    assert [each["method"] for each in talks] == ["twin", "pasta"]
    assert all(each["exchanges"][0]["answer"] for each in talks)
    assert written["shares"]["twin"]["all"] == {"right": 0, "total": 1}
    assert written["formats"] == {"twin": "float32", "pasta": "float32"}
    assert "| answered right | twin" in capsys.readouterr().out


@pytest.mark.slow
def test_the_same_command_gives_the_same_answers(models, prompts, tmp_path):
    _, first = run(models, prompts, tmp_path / "a.json")
    _, second = run(models, prompts, tmp_path / "b.json")
    assert first["conversations"] == second["conversations"]


def refusal(option, value):
    """What the command says of a value that it refuses."""
    with pytest.raises(UserError) as caught:
        main(["people", option, value])
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--threads", "0", "--threads: 0, expected a positive integer"),
        ("--threads", "99999999", "--threads: 99999999, expected at most 1,024"),
        ("--max-tokens", "-1", "--max-tokens: -1, expected a positive integer"),
        ("--max-tokens", "2047", "--max-tokens: 2047, expected at most 2046: "),
        ("--dtype", "int3", "--dtype: 'int3', expected one of auto, float32"),
        ("--device", "gpu", "--device: 'gpu', expected auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_setting_out_of_range_is_one_line(option, value, told):
    assert refusal(option, value).startswith(told)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--device", "cuda", "--device: 'cuda', but torch finds no CUDA device here; use cpu"),
        ("--dtype", "fp8", "--dtype: 'fp8', but fp8 runs on CUDA GPUs, not on cpu; use auto"),
    ],
)
def test_what_this_machine_cannot_run_is_named_by_its_option(option, value, told):
    assert refusal(option, value) == told


def test_draft_heads_that_do_not_fit_are_named_by_the_option_before_a_model_is_loaded(
    models, prompts, tmp_path
):
    shutil.copytree(models, tmp_path / "models")
    save_misfit_heads(tmp_path / "models" / "twin")
    with pytest.raises(UserError, match=r"^--models: draft heads: "):
        run(tmp_path / "models", prompts, tmp_path / "people.json")


def test_models_that_are_not_there_are_named_by_the_option(tmp_path):
    assert refusal("--models", str(tmp_path)).startswith(f"--models {str(tmp_path)!r}: no model in twin/")


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"--prompts: .*absent\.jsonl: no such file"):
        main(["people", "--prompts", str(tmp_path / "absent.jsonl")])
