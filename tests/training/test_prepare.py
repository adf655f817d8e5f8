"""Data sets are made once, whole or not at all, and mistakes in them are named."""

import copy
import errno
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from datasets import load_from_disk
from transformers import AutoTokenizer

from pasta.config import parse_config
from pasta.data.atlas.corpus import atlas_answers
from pasta.data.dataset import TOKENIZER_DIR, prepare_data, prepare_once
from pasta.data.encoding import in_processes
from pasta.data.sections import DataSection
from pasta.errors import CutShort, UserError
from pasta.training.config import SftConfig
from pasta.training.run import RunContext
from pasta.training.sft import prepare, trl_config
from tests.support.tokenizers import MARKERS, TEMPLATE, byte_level
from tests.training.runs import sft_config, sft_dict


def test_a_second_preparation_finds_the_first(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    first, second = (prepare(config, tmp_path / "data") for _ in range(2))
    assert (first.reused, second.reused) == (False, True)
    assert first.path == second.path
    assert first.num_documents == 56
    assert first.num_eval_rows > 0
    assert AutoTokenizer.from_pretrained(first.path / TOKENIZER_DIR).get_vocab() == byte_level().get_vocab()
    assert [path.name for path in (tmp_path / "data").iterdir()] == [first.path.name]


def test_a_full_disk_is_told_by_the_directory_of_the_data_that_are_made(tmp_path: Path) -> None:
    """The line said that no space was left, and not where."""

    def write(directory: Path) -> dict[str, int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CutShort, match=f"^run_dir: {tmp_path}/runs/data: no room is left on its disk"):
        prepare_once(tmp_path / "runs" / "data", byte_level(), write)
    assert not (tmp_path / "runs").exists()


def test_other_content_is_another_data_set(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    first = prepare(config, tmp_path / "data")
    source = Path(config.data.source)
    source.write_text("\n".join(source.read_text().splitlines()[:30]) + "\n")
    assert prepare(config, tmp_path / "data").path != first.path


def test_another_end_token_is_another_data_set(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    for end in MARKERS[:2]:
        tokenizer = copy.deepcopy(byte_level())
        tokenizer.eos_token = end
        tokenizer.chat_template = TEMPLATE.replace("<|end|>", "{{ eos_token }}")
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        prepared = prepare(config, tmp_path / "data")
        assert AutoTokenizer.from_pretrained(prepared.path / TOKENIZER_DIR).eos_token == end


def test_another_rule_of_the_tokenizer_is_another_data_set(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    first = prepare(config, tmp_path / "data")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    rules = json.loads(file.read_text())
    rules["model"]["merges"] = rules["model"]["merges"][:50]
    file.write_text(json.dumps(rules))
    second = prepare(config, tmp_path / "data")
    assert second.num_tokens > first.num_tokens


def test_how_a_tokenizer_was_last_used_makes_no_other_data_set(tmp_path: Path) -> None:
    config = sft_config(tmp_path).data
    tokenizer = copy.deepcopy(byte_level())
    first = prepare_data(config, tokenizer, tmp_path / "data")
    tokenizer("a longer text", truncation=True, max_length=2)
    assert prepare_data(config, tokenizer, tmp_path / "data").path == first.path


def test_held_out_answers_that_are_all_too_long_are_not_evaluated(tmp_path: Path) -> None:
    values = sft_dict(tmp_path)
    values["schedule"]["eval_steps"] = 3
    long = {"messages": [{"role": "user", "content": "Q"}], "annotated": "word " * 600}
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write(f"{json.dumps(long)}\n" * 4)
    config = parse_config(values, SftConfig, "tiny.yaml")
    prepared = prepare(config, tmp_path / "data")
    assert prepared.num_eval_rows == 0
    assert (prepared.num_too_long, prepared.num_eval_too_long) == (0, 4)
    context = RunContext(prepared.path, tmp_path / "work", False, lambda metrics, checkpoint: None)
    assert trl_config(config, context).eval_strategy == "no"


@pytest.mark.slow
def test_shards_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta.data.dataset.SHARD_DOCUMENTS", 8)
    options = DataSection(source="atlas", mode="both", row_length=128, max_length=4096, documents=20)
    one = prepare_data(options, byte_level(), tmp_path / "one")
    two = prepare_data(options, byte_level(), tmp_path / "two", num_processes=2)
    assert rows(one.path) == rows(two.path)
    assert one.num_documents == 20
    assert not list(tmp_path.rglob("shard-*"))


def rows(directory: Path) -> list[list[int]]:
    return list(load_from_disk(str(directory / "train"))["input_ids"])


@pytest.mark.slow
def test_answers_of_a_file_are_encoded_in_several_processes_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took one process of many, and all answers in memory, without a word: 3 GB and minutes for each 100,000."""
    config = sft_config(tmp_path)
    whole = prepare(config, tmp_path / "whole")
    capsys.readouterr()
    monkeypatch.setattr("pasta.data.dataset.BLOCK_ANSWERS", 10)
    monkeypatch.setattr("pasta.data.packing.PART_ROWS", 4)
    parts = prepare(config, tmp_path / "parts", num_processes=2)
    assert rows(parts.path) == rows(whole.path)
    assert replace(parts, path=whole.path) == whole
    assert "tiny, data: 56/56 answers" in capsys.readouterr().out
    assert sorted(path.name for path in parts.path.iterdir()) == sorted(
        path.name for path in whole.path.iterdir()
    )


def fails_at(last: int) -> Callable[[int], int]:
    def work(item: int) -> int:
        if item == last:
            raise UserError(f"item {item}")
        return item

    return work


@pytest.mark.slow
def test_processes_end_with_the_first_item_that_fails() -> None:
    with pytest.raises(UserError, match=r"^item 3$"):
        list(in_processes(partial(fails_at, 3), itertools.count(), 2))
    assert not multiprocessing.active_children()


def dies(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.slow
def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(CutShort, match=r"^a process that made training data has died "):
        list(in_processes(partial(partial, dies), range(3), 2))


@pytest.mark.slow
def test_processes_end_with_the_caller_that_was_interrupted() -> None:
    results = in_processes(partial(fails_at, -1), itertools.count(), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert not multiprocessing.active_children()


def test_held_out_tasks_are_never_trained_on() -> None:
    train, held_out = (
        {str(messages) for messages, _ in atlas_answers(0, split, 30)} for split in ("train", "heldout")
    )
    assert train
    assert not train & held_out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not json", r"data.jsonl:61: not JSON"),
        ('{"messages": []}', r"data.jsonl:61: messages: expected a list of objects"),
        (
            '{"messages": [{"role": "user", "content": "a"}], "annotated": "<async>x</async>"}',
            r"data.jsonl:61: annotated: ",
        ),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    config = sft_config(tmp_path)
    with Path(config.data.source).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=expected):
        prepare(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_held_out_prompts_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    first = prepare(config, tmp_path / "data")
    lines = Path(config.data.source).read_text().splitlines()
    Path(config.data.source).write_text("\n".join([*lines, *lines[:3]]) + "\n")
    second = prepare(config, tmp_path / "data")
    assert (first.num_eval_trained, second.num_eval_trained) == (0, 3)


def test_estimates_that_were_counted_with_another_tokenizer_are_counted(tmp_path: Path) -> None:
    """A model learns to guess its chunks' lengths from them."""
    config = sft_config(tmp_path)
    text = "un mot. " * 3  # 24 bytes
    chunks = [f'<promise topic="a" tokens="{tokens}"/><async>{text}</async>' for tokens in (30, 10)]
    nested = f'<promise topic="b" tokens="90"/><async>{chunks[1]}</async>'
    rows = [
        {"messages": [{"role": "user", "content": f"Q{number}"}], "annotated": answer}
        for number, answer in enumerate([*chunks, nested, "plain", *chunks[:1] * 4])
    ]
    Path(config.data.source).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = prepare(config, tmp_path / "data")
    assert (found.num_other_lengths, found.num_chunks) == (3, 8)
    sequential = replace(config.data, mode="sequential")
    assert prepare(replace(config, data=sequential), tmp_path / "data").num_chunks == 0


def test_a_held_out_answer_that_has_no_tokens_is_numbered_as_in_the_file(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    answer = '<promise topic="a" tokens="3000"/><async>b</async>'
    line = {"messages": [{"role": "user", "content": "Q"}], "annotated": answer}
    with Path(config.data.source).open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(UserError, match="answer 61: "):
        prepare(config, tmp_path / "data")


def test_a_prompt_that_is_a_text_is_a_user_s_message(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    first = prepare(config, tmp_path / "data")
    source = Path(config.data.source)
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    source.write_text(
        "".join(
            json.dumps({"prompt": row["messages"][0]["content"], "annotated": row["annotated"]}) + "\n"
            for row in rows
        )
    )
    second = prepare(config, tmp_path / "data")
    read = [load_from_disk(str(prepared.path / "train"))["input_ids"] for prepared in (first, second)]
    assert list(read[0]) == list(read[1])


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    Path(config.data.source).write_text("\n")
    with pytest.raises(UserError, match="no annotated answers"):
        prepare(config, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_file_that_would_be_held_out_whole_is_refused(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    options = replace(config.data, documents=10, eval_documents=10)
    with pytest.raises(UserError, match=r"eval_documents: 10 of 10 answers of .* expected at most 9"):
        prepare(replace(config, data=options), tmp_path / "data")


def test_a_stage_directory_s_shards_are_one_data_set(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    lines = Path(config.data.source).read_text().splitlines()
    stage = tmp_path / "stage"
    stage.mkdir()
    for number, part in enumerate((lines[:40], lines[40:])):
        (stage / f"annotated-{number:05}.jsonl").write_text("\n".join(part) + "\n")
    (stage / "rejects-00000.jsonl").write_text("not data\n")
    whole = prepare_data(config.data, byte_level(), tmp_path / "data")
    parts = prepare_data(replace(config.data, source=str(stage)), byte_level(), tmp_path / "data")
    rows = [load_from_disk(str(prepared.path / "train"))["input_ids"] for prepared in (whole, parts)]
    assert list(rows[0]) == list(rows[1])


def test_a_directory_without_shards_is_refused(tmp_path: Path) -> None:
    options = DataSection(source=str(tmp_path), mode="pasta", row_length=64, max_length=64)
    with pytest.raises(UserError, match=r"no annotated-\*.jsonl in it"):
        prepare_data(options, byte_level(), tmp_path / "data")


def test_a_foreign_output_directory_is_left_alone(tmp_path: Path) -> None:
    config = sft_config(tmp_path)
    config.output_dir.mkdir()
    (config.output_dir / "thesis.tex").write_text("dear")
    with pytest.raises(UserError, match="is no model of this project"):
        prepare(config, tmp_path / "data")
    assert (config.output_dir / "thesis.tex").read_text() == "dear"
