"""Prompts come from the atlas, a file, AlpacaEval's or a stage's directory; what is wrong is named by its place."""

import json
import re

import pytest

from pasta.data.atlas import heldout_prompts, task_for_prompt
from pasta.data.atlas.tasks import split_of
from pasta.data.prompts import PromptsSection
from pasta.errors import UserError
from pasta.evaluation.prompts import read_eval_prompts, read_prompts
from pasta.stages.stage import StageOutput
from tests.support import evaluations


def user(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


def write(path, *values):
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return str(path)


def test_atlas_prompts_are_distinct_training_tasks_and_follow_from_the_seed():
    prompts = read_prompts(PromptsSection("atlas", 40, seed=5))
    assert len({prompt.id for prompt in prompts}) == 40
    for prompt in prompts:
        task = task_for_prompt(prompt.messages[0]["content"])
        assert split_of(task.family, task.spec["params"]) == "train"
    assert read_prompts(PromptsSection("atlas", 40, seed=5)) == prompts
    assert read_prompts(PromptsSection("atlas", 40, seed=6)) != prompts


def test_a_file_s_prompts_keep_their_order_and_lose_repetitions(tmp_path):
    source = write(tmp_path / "p.jsonl", user("b"), user("a") | {"annotated": "x"}, user("b"))
    assert [p.messages[0]["content"] for p in read_prompts(PromptsSection(source))] == ["b", "a"]


def test_a_count_draws_from_a_file_by_the_seed(tmp_path):
    source = write(tmp_path / "p.jsonl", *(user(str(n)) for n in range(20)))
    drawn = read_prompts(PromptsSection(source, 5, seed=1))
    assert len({prompt.id for prompt in drawn}) == 5
    assert drawn == read_prompts(PromptsSection(source, 5, seed=1))
    assert drawn != read_prompts(PromptsSection(source, 5, seed=2))


def test_an_annotate_stage_s_valid_records_are_read(tmp_path):
    output = StageOutput(tmp_path / "stage", "annotate", {"a": 1}, {})
    work = output.start()
    write(work / "annotated-00001.jsonl", user("two"))
    write(work / "annotated-00000.jsonl", user("one"))
    write(work / "rejects-00000.jsonl", {"reason": "empty"})
    output.finish({}, "test")
    prompts = read_prompts(PromptsSection(str(tmp_path / "stage")))
    assert [p.messages[0]["content"] for p in prompts] == ["one", "two"]


@pytest.mark.parametrize(
    ("stage", "first", "config", "figures", "said"),
    [
        (
            "annotate",
            "annotated",
            {},
            {"kept": 2},
            "stage: has shards of 1 of the 2 answers that its stage has kept",
        ),
        (
            "sample",
            "samples",
            {"shard_prompts": 1},
            {"prompts": 2},
            "stage/samples-00001.jsonl: no such file",
        ),
    ],
)
def test_a_stage_without_its_last_shard_is_refused(tmp_path, stage, first, config, figures, said):
    output = StageOutput(tmp_path / "stage", stage, config, {})
    write(output.start() / f"{first}-00000.jsonl", user("one"))
    output.finish(figures, "test")
    with pytest.raises(UserError, match=re.escape(f"prompts.source: {tmp_path}/{said}")):
        read_prompts(PromptsSection(str(tmp_path / "stage")))


def test_an_evaluation_s_directory_has_the_prompts_that_it_answered(tmp_path):
    records = [evaluations.prompt(key, {"twin": evaluations.answer()}) for key in ("tea", "coffee")]
    output = StageOutput(tmp_path / "a", "evaluate", {"a": 1}, {})
    write(output.start() / "answers.jsonl", {"config": {"a": 1}}, *records)
    write(output.work_dir / "verdicts.jsonl", {"config": {"a": 1}}, {"key": "tea", "verdicts": {}})
    output.finish({}, "test")
    found = read_prompts(PromptsSection(str(tmp_path / "a")))
    assert [p.messages for p in found] == [record["messages"] for record in records]


def test_an_evaluation_that_has_lost_answers_is_no_source(tmp_path):
    records = [evaluations.prompt(key, {"twin": evaluations.answer()}) for key in ("tea", "coffee")]
    output = StageOutput(tmp_path / "a", "evaluate", {"a": 1}, {})
    write(output.start() / "answers.jsonl", {"config": {"a": 1}}, *records)
    output.finish({"prompts": 2}, "test")
    evaluations.cut_short(tmp_path / "a", "answers.jsonl")
    with pytest.raises(UserError, match=r"prompts.source: .*a: the answers to 1 of 2 prompts are gone"):
        read_prompts(PromptsSection(str(tmp_path / "a")))


def test_an_evaluation_s_atlas_prompts_are_held_out_tasks_with_their_families():
    prompts = read_eval_prompts(PromptsSection("atlas", 40, seed=5))
    assert len({each.prompt.id for each in prompts}) == 40
    for entry in prompts:
        task = task_for_prompt(entry.prompt.messages[0]["content"])
        assert split_of(task.family, task.spec["params"]) == "heldout"
        assert (entry.family, entry.independent) == (task.family, task.independent)
    assert read_eval_prompts(PromptsSection("atlas", 40, seed=5)) == prompts
    assert read_eval_prompts(PromptsSection("atlas", 40, seed=6)) != prompts


def test_a_file_s_prompts_have_a_family_only_if_they_are_tasks_of_the_atlas(tmp_path):
    (task,) = heldout_prompts(1)
    source = write(tmp_path / "p.jsonl", user(task.prompt), user("What is tea?"))
    of_atlas, other = read_eval_prompts(PromptsSection(source))
    assert (of_atlas.family, of_atlas.independent) == (task.family, task.independent)
    assert (other.family, other.independent) == (None, None)


def test_an_alpaca_eval_file_s_instructions_are_prompts(tmp_path):
    entries = [{"dataset": "d", "instruction": text, "output": "…"} for text in ("b", "a", "b")]
    (tmp_path / "outputs.json").write_text(json.dumps(entries, indent=1))
    prompts = read_prompts(PromptsSection(str(tmp_path / "outputs.json")))
    assert [p.messages for p in prompts] == [user("b")["messages"], user("a")["messages"]]


def test_an_array_of_alpaca_s_form_is_asked_with_input_and_history(tmp_path):
    entries = [
        {"instruction": "Sum it up.", "input": "Tea is a drink.", "output": "…"},
        {
            "instruction": "And tea?",
            "input": "",
            "history": [["What is coffee?", "A drink."]],
            "system": "Be brief.",
        },
    ]
    (tmp_path / "alpaca.json").write_text(json.dumps(entries))
    first, second = (
        prompt.messages for prompt in read_prompts(PromptsSection(str(tmp_path / "alpaca.json")))
    )
    assert first == user("Sum it up.\n\nTea is a drink.")["messages"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[-1]["content"] == "And tea?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"instruction": "a"}', "outputs.json: not JSON"),
        (
            '[{"instruction": "a"}, {"output": "b"}]',
            "outputs.json: entry 2: expected a JSON array of objects",
        ),
        ('[{"instruction": " "}]', "outputs.json: entry 1: expected a JSON array of objects"),
        ('[{"instruction": "a", "input": 3}]', "outputs.json: entry 1: input: expected text, got int"),
        ("[]", "no prompts in it"),
    ],
)
def test_a_broken_alpaca_eval_file_is_named_with_its_entry(tmp_path, text, expected):
    (tmp_path / "outputs.json").write_text(text)
    with pytest.raises(UserError) as error:
        read_prompts(PromptsSection(str(tmp_path / "outputs.json")))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{"], "p.jsonl:1: not JSON"),
        ([json.dumps(user("a")), "[]"], "p.jsonl:2: expected {"),
        (['{"messages": []}'], "p.jsonl:1: messages: expected a list of objects with 'role' and 'content'"),
        (
            ['{"messages": [{"role": "user"}]}'],
            "p.jsonl:1: messages: message 1: expected 'role' and 'content'",
        ),
        (
            ['{"messages": [{"role": "assistant", "content": "x"}]}'],
            "the last message is of role 'assistant'",
        ),
        ([""], "no prompts in it"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, lines, expected):
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        read_prompts(PromptsSection(str(tmp_path / "p.jsonl")))
    assert expected in str(error.value)


def test_a_missing_source_an_unfinished_stage_and_too_few_prompts_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file; expected atlas, a JSONL file"):
        read_prompts(PromptsSection(str(tmp_path / "gone.jsonl")))
    with pytest.raises(UserError, match="holds no finished stage"):
        read_prompts(PromptsSection(str(tmp_path)))
    with pytest.raises(UserError, match=r"prompts.count: 3, but .* has 1 distinct prompts"):
        read_prompts(PromptsSection(write(tmp_path / "p.jsonl", user("a"), user("a")), 3))
