"""Traces: which lines are answers, what counts their tokens, what is left out."""

import json

import pytest

from pasta.data.word_tokenizer import WordTokenizer
from pasta.errors import UserError
from pasta.lang import Codec
from pasta.simulation.config import TraceSection
from pasta.simulation.trace import make_trace, pick_answers, read_trace

ANNOTATED = 'Two:<promise topic="tea" tokens="10"/><async> Leaves.</async><sync/> Done.'
LINE = {"prompt": "Drinks?", "annotated": ANNOTATED}


def written(tmp_path, *lines, name="trace.jsonl"):
    path = tmp_path / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_line_is_a_prompt_and_an_answer_with_what_else_is_known(tmp_path):
    messages = [{"role": "user", "content": "Drinks?"}]
    known = {"prompt_tokens": 7, "annotated": ANNOTATED, "arrival_s": 1.5}
    first, second, third = read_trace(
        written(tmp_path, LINE, {"messages": messages, "annotated": ANNOTATED}, known)
    )
    assert first.messages == second.messages == messages
    assert first.document == third.document
    assert (third.prompt_tokens, third.arrival_s) == (7, 1.5)
    assert third.key == f"{tmp_path / 'trace.jsonl'}:3"


def test_an_annotate_stage_and_an_evaluation_can_be_read(tmp_path):
    written(tmp_path, LINE, name="annotated-00000.jsonl")
    written(tmp_path, LINE, LINE, name="annotated-00001.jsonl")
    assert len(read_trace(tmp_path)) == 3
    answers = {"key": "0", "messages": [{"role": "user", "content": "?"}], "answers": {"pasta": LINE}}
    path = written(tmp_path, {"config": {}}, answers, name="answers.jsonl")
    assert len(read_trace(path, method="pasta")) == 1


def test_a_prompt_that_an_evaluation_s_method_skipped_is_left_out_with_its_reason(tmp_path):
    messages = [{"role": "user", "content": "Drinks?"}]
    skipped = {"skipped": "prompt of 4096 tokens"}
    answers = [{"key": "0", "messages": messages, "answers": {"pasta": each}} for each in (LINE, skipped)]
    traced = read_trace(written(tmp_path, *answers), method="pasta")
    trace = make_trace(traced, Codec(WordTokenizer()), 1000)
    assert len(trace.scripts) == 1
    assert trace.left_out == {f"{tmp_path / 'trace.jsonl'}:2": "skipped: prompt of 4096 tokens"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", r"trace.jsonl:2: not JSON"),
        ("[]", r"trace.jsonl:2: expected an object"),
        ({"prompt": "x"}, r"trace.jsonl:2: annotated: expected a string, got no such key"),
        ({**LINE, "annotated": "<sync/"}, None),
        ({**LINE, "annotated": "</async>"}, r"trace.jsonl:2: annotated: "),
        ({"annotated": "x"}, r"trace.jsonl:2: expected prompt \(text\), messages, or prompt_tokens"),
        ({**LINE, "prompt_tokens": 0}, r"prompt_tokens: 0, expected a positive integer"),
        (
            {**LINE, "prompt_tokens": 2**63 - 1},
            r"prompt_tokens: 9.22337e\+18, expected a positive integer up to 10000000",
        ),
        ({**LINE, "arrival_s": "now"}, r"arrival_s: 'now', expected a number"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, expected):
    path = written(tmp_path, LINE, line)
    if expected is None:
        assert len(read_trace(path)) == 2
        return
    with pytest.raises(UserError, match=expected) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"has no annotated-\*.jsonl"):
        read_trace(tmp_path)
    with pytest.raises(UserError, match="is empty"):
        read_trace(written(tmp_path, ""))
    with pytest.raises(UserError, match="no answer of method 'x'"):
        read_trace(written(tmp_path, LINE), method="x")


def test_a_seed_draws_and_fewer_are_the_first_of_more(tmp_path):
    lines = read_trace(written(tmp_path, *[{**LINE, "prompt_tokens": n + 1} for n in range(9)]))
    few = pick_answers(lines, TraceSection("t", count=3, seed=1))
    assert few == pick_answers(lines, TraceSection("t", count=6, seed=1))[:3]
    assert few != pick_answers(lines, TraceSection("t", count=3, seed=2))
    assert pick_answers(lines, TraceSection("t", count=3, shuffle=False)) == lines[:3]


def test_tokens_are_counted_and_what_a_slot_cannot_hold_is_left_out(tmp_path):
    long = {**LINE, "annotated": "word " * 60}
    lines = read_trace(
        written(tmp_path, LINE, long, {**LINE, "prompt_tokens": 90}, {**LINE, "prompt_tokens": 9})
    )
    trace = make_trace(lines, Codec(WordTokenizer()), slot_tokens=60)
    first, last = trace.scripts
    # user : Drinks ? + the line's end, a space belongs to its word; Two : Leaves . Done . and the end.
    assert first.parallel.prompt_tokens == 5
    assert first.sequential.plain_tokens == first.parallel.plain_tokens == 7
    assert len(first.parallel.tokens) == 2
    assert last.parallel.prompt_tokens == 9
    assert [key.rpartition(":")[2] for key in trace.left_out] == ["2", "3"]
    assert all("tokens, but a slot holds 60" in reason for reason in trace.left_out.values())
    with pytest.raises(UserError, match="trace: none of 4 answers can be decoded"):
        make_trace(lines, Codec(WordTokenizer()), slot_tokens=4)
