"""A user's mistake is one line and exit code 2, before any worker starts and with nothing written."""

import copy
from pathlib import Path
from typing import Any

import pytest

from jobs import sft, training
from pasta.entrypoint import run_main
from tests.training.runs import sft_dict, write_config


def _fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["jobs.sft", *arguments])
    monkeypatch.setattr(training, "_fit", lambda *_: pytest.fail("workers were started"))
    with pytest.raises(SystemExit) as error:
        run_main(sft.main)
    assert error.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in lines if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"optimisation.learning_rat": 1.0}, "unknown key 'learning_rat'"),
    "wrong type": ({"optimisation.rows": "many"}, "optimisation.rows"),
    "two sources of weights": ({"model.init_from": "x"}, "exactly one of architecture"),
    "missing model": (
        {"model.architecture": None, "model.tokenizer": None, "model.init_from": "./gone"},
        "model.init_from: ./gone: no such file or directory",
    ),
    "missing tokenizer": (
        {"model.tokenizer": "./gone"},
        "model.tokenizer: ./gone: no such file or directory",
    ),
    "missing DeepSpeed file": ({"optimisation.deepspeed": "gone.json"}, "optimisation.deepspeed: gone.json"),
    "missing data": ({"data.source": "gone.jsonl"}, "data.source: gone.jsonl: no such file"),
    "nothing fits": ({"data.row_length": 4, "data.max_length": 4}, "no example to train on"),
    "more answers than held out": (
        {"data.eval_answers": 5},
        "eval_answers 5: expected 0 to eval_documents (4)",
    ),
    "adapters from scratch": ({"lora.rank": 4}, "a model from scratch has nothing to adapt"),
    "no workers": ({"workers.num_workers": 0}, "num_workers 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, expected = CASES[case]
    config = copy.deepcopy(sft_dict(tmp_path))
    for dotted, value in changes.items():
        section, key = dotted.split(".")
        config.setdefault(section, {})[key] = value
    assert expected in _fail(monkeypatch, capsys, "--config", str(write_config(tmp_path, config)))
    assert not (tmp_path / "model").exists()


def test_a_missing_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "gone.yaml: no such file" in _fail(monkeypatch, capsys, "--config", "gone.yaml")
