"""Conversations are read strictly: a mistake is one line that names the file, the line and the key."""

import json

import pytest

from pasta.errors import UserError
from pasta.evaluation.people.prompts import read_conversations

ASKED = {"user": "who wrote Emma?", "things": ["Emma"], "contains": ["Austen"]}


def read(tmp_path, row):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return read_conversations(file)


def test_a_conversation_is_read(tmp_path):
    (found,) = read(tmp_path, {"kind": "one fact", "turns": [ASKED]})
    assert found.turns[0].contains == ("Austen",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "riddle", "turns": [ASKED]}, "kind"),
        ({"kind": "one fact", "turns": []}, "turns: expected one at least"),
        ({"kind": "one fact", "turns": [ASKED | {"contain": "x"}]}, "contain"),
        ({"kind": "one fact", "turns": [ASKED | {"things": ["Atlantis"]}]}, "Atlantis"),
        ({"kind": "one fact", "turns": [ASKED | {"only": ["height"]}]}, "height"),
        ({"kind": "one fact", "turns": [ASKED | {"choice": "Emma"}]}, "superlatives"),
        ({"kind": "one fact", "turns": [ASKED | {"compares": True}]}, "two things"),
        ({"kind": "one fact", "turns": [{"user": "Hi"}]}, "expected one of contains"),
    ],
)
def test_a_mistake_names_its_place(tmp_path, row, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, row)
    assert "mine.jsonl:1" in str(caught.value)


def test_an_empty_file_is_refused(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.touch()
    with pytest.raises(UserError, match="no conversations in it"):
        read_conversations(file)
