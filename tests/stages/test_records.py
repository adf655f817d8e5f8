"""Records survive interruption, and never mix two configurations."""

import json
import os
import resource

import pytest

from pasta.errors import UserError
from pasta.stages.records import RecordFile, write_json


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "run.speed.jsonl"


def test_records_are_found_again_under_the_same_configuration(path):
    RecordFile(path, {"prompts": 3}).add("0", {"seconds": 1.5})
    again = RecordFile(path, {"prompts": 3})
    assert "0" in again
    assert len(again) == 1
    assert again.records["0"]["seconds"] == 1.5


def test_a_line_cut_off_by_a_killed_process_is_measured_again(path):
    file = RecordFile(path, {})
    file.add("0", {"seconds": 1.5})
    with path.open("a") as stream:
        stream.write('{"key": "1", "seco')
    again = RecordFile(path, {})
    again.add("1", {"seconds": 2.5})
    assert [*RecordFile(path, {}).records] == ["0", "1"]


def test_another_configuration_begins_anew_and_keeps_the_old_records_aside(path):
    RecordFile(path, {"dtype": "float32"}).add("0", {})
    other = RecordFile(path, {"dtype": "bfloat16"})
    assert len(other) == 0
    other.add("0", {})
    assert len(RecordFile(path, {"dtype": "bfloat16"})) == 1
    assert '"float32"' in path.with_suffix(".jsonl.old").read_text()


@pytest.mark.parametrize("fresh", [False, True])
def test_another_configuration_that_ends_before_its_first_record_changes_nothing(path, fresh):
    RecordFile(path, {"dtype": "float32"}).add("0", {})
    for _ in range(2):
        RecordFile(path, {"dtype": "bfloat16"}, fresh=fresh)
    assert len(RecordFile(path, {"dtype": "float32"})) == 1
    assert not path.with_suffix(".jsonl.old").exists()


def test_a_file_without_records_takes_no_other_s_place(path):
    RecordFile(path, {"dtype": "float32"}).add("0", {})
    RecordFile(path, {"dtype": "bfloat16"}).add("0", {})
    path.write_text('{"config": {"dtype": "int8"}}\n')
    RecordFile(path, {"dtype": "auto"}).add("0", {})
    assert '"float32"' in path.with_suffix(".jsonl.old").read_text()


def test_fresh_begins_anew(path):
    RecordFile(path, {}).add("0", {})
    assert len(RecordFile(path, {}, fresh=True)) == 0


def test_a_configuration_compares_as_it_was_written(path):
    RecordFile(path, {"lanes": (1, 8)}).add("0", {})
    assert len(RecordFile(path, {"lanes": (1, 8)})) == 1


def test_every_record_is_on_disk_when_add_returns(path):
    file = RecordFile(path, {})
    file.add("0", {"text": "é\u2028x"})
    assert json.loads(path.read_text().split("\n")[1]) == {"key": "0", "text": "é\u2028x"}
    assert RecordFile(path, {}).records["0"]["text"] == "é\u2028x"


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "figures.json"
    write_json(out, {"a": 1})
    with pytest.raises(TypeError):
        write_json(out, {"a": object()})
    assert json.loads(out.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["figures.json"]


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_json(tmp_path / "file" / "out.json", {})


def test_a_directory_that_has_become_read_only_is_one_clear_line(path, monkeypatch):
    RecordFile(path, {"dtype": "float32"}).add("0", {})
    other = RecordFile(path, {"dtype": "bfloat16"})

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match="cannot be written"):
        other.add("0", {})


def test_a_disk_that_is_full_in_the_middle_of_a_line_costs_no_record_that_comes_later(path):
    file = RecordFile(path, {})
    file.add("0", {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(UserError, match="cannot be written"):
            file.add("1", {"reply": "long " * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.add("2", {})
    assert [*file.records] == [*RecordFile(path, {}).records] == ["0", "2"]
