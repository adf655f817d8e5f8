"""Documents to replay: a user's file is checked before anything is measured."""

import json

import pytest

from pasta.benchmark.documents import Recorded, answered, read_documents, sample_documents
from pasta.errors import UserError
from pasta.lang import Chunk, Document, Text

ANNOTATED = 'See: <promise topic="a" tokens="10"/><async>one</async>.'


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_prompts_may_be_text_or_messages(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    lines = [json.dumps({"prompt": prompt, "annotated": ANNOTATED}) for prompt in ("Hi", messages)]
    first, second = read_documents(write(tmp_path / "d.jsonl", *lines))
    assert first == second
    assert first.document == Document((Text("See: "), Chunk("a", 10, (Text("one"),)), Text(".")))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "2: not JSON"),
        ("[]", '2: expected an object with "prompt"'),
        (json.dumps({"prompt": 3, "annotated": "x"}), "2: prompt: expected a text or messages, got a number"),
        (json.dumps({"prompt": "x", "annotated": "</async>"}), "2: annotated: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, expected):
    good = json.dumps({"prompt": "Hi", "annotated": ANNOTATED})
    with pytest.raises(UserError, match=expected):
        read_documents(write(tmp_path / "d.jsonl", good, line))


def test_a_missing_and_an_empty_file_are_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_documents(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="it is empty"):
        read_documents(write(tmp_path / "d.jsonl"))


def test_an_annotate_stage_s_directory_is_read_file_by_file(tmp_path):
    for number in (1, 0):
        record = {
            "id": "x",
            "source": f"data/model-{number}.json:record 7",
            "messages": [{"role": "user", "content": f"Hi {number}"}],
            "annotated": ANNOTATED,
            "answer": "See: one.",
        }
        write(tmp_path / f"annotated-0000{number}.jsonl", json.dumps(record))
    write(tmp_path / "rejects-00000.jsonl", "{")
    first, second = read_documents(tmp_path)
    assert first.messages == [{"role": "user", "content": "Hi 0"}]
    assert (second.key, second.source) == ("annotated-00001.jsonl:1", "model-1.json")


def test_a_directory_of_something_else_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"no annotated-\*\.jsonl in it, expected the output directory of jobs"
    ):
        read_documents(tmp_path)


def test_a_sample_follows_from_its_seed_and_grows_at_its_end():
    documents = [Recorded([{"role": "user", "content": str(n)}], Document()) for n in range(50)]
    few, more = sample_documents(documents, 5, seed=1), sample_documents(documents, 20, seed=1)
    assert more[:5] == few
    assert sample_documents(documents, 5, seed=2) != few
    assert len(sample_documents(documents, 99, seed=1)) == 50


def test_answers_without_chunks_are_not_replayed():
    plain = {"prompt": "a", "independent": True, "annotated": "x", "pasta": {"threads": 1}}
    annotated = {"prompt": "b", "independent": True, "annotated": ANNOTATED, "pasta": {"threads": 2}}
    assert [recorded.messages[0]["content"] for recorded in answered([plain, annotated, annotated], 1)] == [
        "b"
    ]
