"""A user's mistake is one line and exit code 2, before any worker starts and with nothing written."""

import copy
import json
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
    "a model without a tokenizer": (
        {"model.architecture": None, "model.tokenizer": None, "model.init_from": "docs"},
        "model.init_from: docs: no tokenizer can be read there",
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
    "all held out": (
        {"data.eval_documents": 60},
        "data.eval_documents: 60 of 60 answers of ",
    ),
    "adapters from scratch": ({"lora.rank": 4}, "a model from scratch has nothing to adapt"),
    "no workers": ({"workers.num_workers": 0}, "num_workers 0"),
    "no GPUs": (
        {"workers.use_gpu": True, "workers.num_workers": 99},
        "workers.num_workers: 99 processes take a GPU each, and this machine has ",
    ),
    "a step back": ({"optimisation.warmup_steps": -1}, "warmup_steps -1: expected 0 or more"),
    "no end": ({"optimisation.max_steps": 0}, "max_steps 0: expected a positive integer"),
    "a beta of one": (
        {"optimisation.betas": [0.9, 1.0]},
        "betas [0.9, 1.0]: expected two numbers from 0 to below 1",
    ),
    "a seed for no generator": (
        {"optimisation.seed": -1},
        "seed -1: expected an integer from 0 to 4294967295",
    ),
    "evaluation before the start": ({"schedule.eval_steps": -1}, "eval_steps -1: expected 0 or more"),
    "no threads": ({"workers.threads": 0}, "threads 0: expected a positive integer"),
    "failures below none": ({"workers.max_failures": -2}, "max_failures -2: expected 0 or more, or -1"),
    "fewer documents than none": ({"data.documents": -1}, "data: documents -1: expected a number from 0"),
    "no documents": ({"data.documents": 0}, "data: documents: expected the number of documents"),
    "endless documents": ({"data.documents": 10**30}, "expected an integer of at most 64 bits"),
    "many documents": (
        {"data.source": "atlas", "data.documents": 2**62},
        "documents 4611686018427387904: expected",
    ),
    "families of a file": (
        {"data.mixture": {"count": -1.0}},
        "mixture, echo, talk: only the atlas has families",
    ),
    "less than no family": (
        {"data.source": "atlas", "data.documents": 10, "data.mixture": {"count": -1.0}},
        "data: mixture.count -1.0: expected a finite number of 0 or more",
    ),
    "a family that is none": (
        {"data.source": "atlas", "data.documents": 10, "data.mixture": {"planet": 2.0}},
        "data: mixture: unknown family 'planet'; expected some of profiles, ",
    ),
    "endless names": (
        {"data.source": "a" * 300},
        "data.source: expected at most 255 bytes a name, 4095 a path, got 'aaaa",
    ),
    "a NUL in a path": ({"data.source": "a\0b"}, "'a\\x00b': expected text without NUL characters"),
    "a NUL in DeepSpeed's path": ({"optimisation.deepspeed": "a\0b"}, "expected text without NUL characters"),
}
# What a file may hold instead of rows or of JSON, and what is said of it as data and as a DeepSpeed configuration.
FILES: dict[str, tuple[bytes, str, str]] = {
    "bytes": (b"\x89PNG\x00\xff", "wrong:1: byte 1 is not UTF-8", "wrong: byte 1 is not UTF-8"),
    "digits": (b'{"a": ' + b"9" * 5000 + b"}", "wrong:1: not JSON: a number of thou", "not JSON: a number of thou"),
    "brackets": (b"[" * 100_000, "wrong:1: not JSON that can be read", "wrong: not JSON that can be read"),
    "braces": (b'{"a":' * 150 + b"1" + b"}" * 150, "wrong:1: not JSON that can be read", "nested too deeply"),
    "a list": (b"[]", "wrong:1: expected {", "wrong: expected a JSON object"),
    "nothing": (b"", "no annotated answers in it", "wrong: not JSON: Expecting value at column 1"),
    "another stage": (b'{"zero_optimization": 3}', "wrong:1: messages: expected", "expected a mapping with stage 0"),
}  # fmt: skip
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a number for a text": (
        {"messages": [{"role": "user", "content": 3}]},
        "messages: message 1: content: expected a string",
    ),
    "an unknown role": (
        {"messages": [{"role": "wizard", "content": "a"}]},
        "messages: message 1: role 'wizard': expected system, developer, user, assistant",
    ),
    "the answer among the messages": (
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        "the last message is of role 'assistant'; expected the user's that the answer is to",
    ),
    "half a character": (
        {"messages": [{"role": "user", "content": "a\ud800"}]},
        "messages[0].content: character 2 is half of a surrogate pair",
    ),
    "half a character in a topic": (
        {"annotated": '<promise topic="\udfff" tokens="10"/><async></async>'},
        "annotated: character 17 is half of a surrogate pair",
    ),
    "nesting": (
        {"annotated": '<promise topic="a" tokens="10"/><async>' * 3000 + "</async>" * 3000},
        "annotated: line 1, column 3901: expected chunks nested at most 100 levels deep",
    ),
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
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_something_else_is_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, as_data, as_deepspeed = FILES[case]
    (tmp_path / "wrong").write_bytes(content)
    for key, expected in (("data.source", as_data), ("optimisation.deepspeed", as_deepspeed)):
        config = copy.deepcopy(sft_dict(tmp_path))
        section, name = key.split(".")
        config[section][name] = str(tmp_path / "wrong")
        assert expected in _fail(monkeypatch, capsys, "--config", str(write_config(tmp_path, config)))


@pytest.mark.parametrize("case", ROWS)
def test_a_row_that_cannot_be_learned_from_is_named(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, expected = ROWS[case]
    config = sft_dict(tmp_path)
    row = {"messages": [{"role": "user", "content": "a"}], "annotated": "b", **changes}
    with Path(config["data"]["source"]).open("a") as file:
        file.write(json.dumps(row) + "\n")
    line = _fail(monkeypatch, capsys, "--config", str(write_config(tmp_path, config)))
    assert f"data.jsonl:61: {expected}" in line
    assert not (tmp_path / "runs").exists()


def test_a_missing_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "gone.yaml: no such file" in _fail(monkeypatch, capsys, "--config", "gone.yaml")


@pytest.mark.parametrize(("documents", "says"), [(61, True), (60, False), (None, False)])
def test_more_documents_than_there_are_is_said(
    documents: int | None,
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = sft_dict(tmp_path)
    config["data"]["documents"] = documents
    monkeypatch.setattr(sft, "fit", lambda *_, **__: None)
    monkeypatch.setattr("sys.argv", ["jobs.sft", "--config", str(write_config(tmp_path, config))])
    assert sft.main() == 0
    said = f"data.documents: 61, but {config['data']['source']} has 60: all are taken"
    assert (said in capsys.readouterr().out) == says
