"""Which paths of a configuration mean something on the nodes of a cluster."""

import re
from pathlib import Path

import pytest

from jobs.storage import check_paths, relocated
from pasta.errors import UserError
from tests.support.paths import ROOT


@pytest.mark.parametrize("value", ["runs/data/x.jsonl", "./runs/data/x.jsonl", "../data/x.jsonl"])
def test_what_lies_beside_the_code_is_not_there(value):
    with pytest.raises(UserError, match="is not sent to the cluster"):
        check_paths({"source": value}, ROOT)


@pytest.mark.parametrize("value", ["answers.jsonl", "./answers.jsonl", "*.jsonl", "mine/*.jsonl"])
def test_files_in_the_root_are_not_sent_either(tmp_path, value):
    (tmp_path / "mine").mkdir()
    for name in ("answers.jsonl", "mine/answers.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"^source: '{re.escape(value)}' is not sent to the cluster"):
        check_paths({"source": value}, tmp_path)


def test_a_word_may_be_the_name_of_a_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    check_paths({"name": "mine", "baseline": "mine"}, tmp_path)


def test_a_text_is_too_long_for_a_path(tmp_path):
    (tmp_path / "Read").mkdir()
    check_paths({"prompt": "Read/write, " + "and so on" * 99}, tmp_path)


@pytest.mark.parametrize("value", ["platform/pasta/data", "google/gemma-7b", "/mnt/data/x.jsonl", "atlas"])
def test_what_the_cluster_can_find_is_left_alone(value):
    config = {"data": [{"source": value}]}
    check_paths(config, ROOT)
    assert relocated(config, Path("/mnt/pasta")) == []
