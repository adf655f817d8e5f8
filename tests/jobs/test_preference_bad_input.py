"""A user's mistake is one line and exit code 2, before any worker starts and with nothing written."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from jobs import preference, training
from pasta.entrypoint import run_main
from pasta.training.preference import prepare
from tests.training.pair_runs import (
    pair_line,
    preference_config,
    preference_dict,
    save_tiny_model,
    write_config,
)


def _fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path) -> str:
    monkeypatch.setattr("sys.argv", ["jobs.preference", "--config", str(config)])
    monkeypatch.setattr(training, "_fit", lambda *_: pytest.fail("workers were started"))
    with pytest.raises(SystemExit) as error:
        run_main(preference.main)
    assert error.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in lines if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"objective.alfa": 1.0}, "unknown key 'alfa' (did you mean 'alpha'?)"),
    "unknown loss": ({"objective.loss": "kto"}, "objective.loss"),
    "wrong type": ({"optimisation.rows": "many"}, "optimisation.rows"),
    "one sample": ({"objective.num_samples": 1}, "num_samples 1: expected at least 2"),
    "more samples than a stage draws": (
        {"objective.num_samples": 10**12},
        "num_samples 1000000000000: expected at most 10,000",
    ),
    "dropout": ({"lora.dropout": 0.1}, "lora.dropout 0.1: has no effect"),
    "a share above one": ({"objective.alpha": 1.5}, "alpha 1.5: expected a share from 0 to 1"),
    "no model": ({"model.init_from": None}, "expected exactly one of architecture"),
    "missing model": ({"model.init_from": "./gone"}, "model.init_from: ./gone: no such"),
    "a tokenizer": ({"model.tokenizer": "atlas"}, "model.tokenizer: has no place here"),
    "missing reference": ({"objective.reference": "./gone"}, "objective.reference: ./gone: no such"),
    "missing DeepSpeed file": ({"optimisation.deepspeed": "gone.json"}, "optimisation.deepspeed: gone.json"),
    "missing pairs": ({"data.source": "gone"}, "data.source: gone: no such file"),
    "nothing fits": ({"data.max_length": 4}, "no pair to train on"),
    "no pairs": ({"data.pairs": 0}, "pairs 0: expected a positive integer"),
    "all held out": ({"data.eval_pairs": 4}, "no pair to train on"),
    "no GPUs": (
        {"workers.use_gpu": True, "workers.num_workers": 99},
        "workers.num_workers: 99 processes take a GPU each, and this machine has ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, expected = CASES[case]
    config = copy.deepcopy(preference_dict(tmp_path))
    for dotted, value in changes.items():
        section, key = dotted.split(".")
        config.setdefault(section, {})[key] = value
    assert expected in _fail(monkeypatch, capsys, write_config(tmp_path, config))
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not json", "pairs.jsonl:5: not JSON"),
        (json.dumps({**pair_line(9), "chosen": 3}), "pairs.jsonl:5: chosen: expected a string, got a number"),
        (json.dumps({**pair_line(9), "rejected": "<async>x</async>"}), "pairs.jsonl:5: rejected: "),
        (
            json.dumps({**pair_line(9), "messages": [{"role": "system", "content": "a"}]}),
            "pairs.jsonl:5: the last message is of role 'system'; expected the user's that the answer is to",
        ),
    ],
)
def test_a_broken_line_is_named(
    line: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = preference_dict(tmp_path)
    with (tmp_path / "stage/pairs.jsonl").open("a") as file:
        file.write(line + "\n")
    assert expected in _fail(monkeypatch, capsys, write_config(tmp_path, config))


def test_a_mistake_leaves_what_an_earlier_run_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(tmp_path)
    (tmp_path / "runs/data").mkdir(parents=True)
    config["data"]["max_length"] = 4
    assert "no pair to train on" in _fail(monkeypatch, capsys, write_config(tmp_path, config))
    assert not [*(tmp_path / "runs/data").iterdir()]


def test_pairs_of_another_number_of_samples_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(tmp_path)
    file = tmp_path / "stage/pairs.jsonl"
    file.write_text("".join(json.dumps({**pair_line(n), "num_candidates": 5 + n}) + "\n" for n in range(3)))
    config["objective"]["num_samples"] = 6
    said = f"objective.num_samples: 6, but {file}:3 is the best and the worst of 7 answers"
    assert said in _fail(monkeypatch, capsys, write_config(tmp_path, config))
    assert not [*tmp_path.rglob("dataset_info.json")], "said before the data are made"
    options = preference_config(config)
    prepare(replace(options, objective=replace(options.objective, num_samples=7)), tmp_path / "data")
    prepare(
        replace(options, objective=replace(options.objective, num_samples=10, beta=0.1)), tmp_path / "data"
    )
    assert not capsys.readouterr().err
    prepare(replace(options, objective=replace(options.objective, num_samples=10)), tmp_path / "data")
    said = f"objective.num_samples: 10, but no pair of {file} is of more than 7 answers"
    assert said in capsys.readouterr().err


def test_a_model_without_control_tokens_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(tmp_path)
    path = tmp_path / "start/tokenizer.json"
    path.write_text(path.read_text().replace("<sync/>", "<other/>"))
    settings = tmp_path / "start/tokenizer_config.json"
    settings.write_text(settings.read_text().replace("<sync/>", "<other/>"))
    assert "start has no control tokens" in _fail(monkeypatch, capsys, write_config(tmp_path, config))


def test_a_reference_of_another_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(tmp_path)
    reference = save_tiny_model(tmp_path / "reference")
    tokenizer = AutoTokenizer.from_pretrained(reference)
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(reference)
    config["objective"]["reference"] = str(reference)
    assert "has another vocabulary than" in _fail(monkeypatch, capsys, write_config(tmp_path, config))


def test_too_few_embedding_rows_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preference_dict(tmp_path)
    settings = tmp_path / "start/config.json"
    settings.write_text(settings.read_text().replace('"vocab_size": 512', '"vocab_size": 64'))
    assert "64 embedding rows" in _fail(monkeypatch, capsys, write_config(tmp_path, config))
