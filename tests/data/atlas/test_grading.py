"""Grading: the true answer is fully right, and whatever is changed in it is found."""

import random
import re
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.data.atlas import (
    FAMILIES,
    AtlasTask,
    grade,
    grade_structure,
    iter_corpus,
    sample_task,
    task_for_prompt,
)
from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.tasks import task_of
from pasta.lang import Chunk, Document, Sync, Text

families = st.sampled_from(sorted(FAMILIES))
seeds = st.integers(0, 2**32)


def draw(family: str, seed: int) -> AtlasTask:
    return sample_task(random.Random(seed), "heldout", family)


def ask(prompt: str) -> AtlasTask:
    task = task_for_prompt(prompt)
    assert task is not None
    return task


def faults(task: AtlasTask, answer: str) -> list[str]:
    return [why for _, ok, why in grade(task, answer).statements if not ok]


@given(families, seeds)
def test_the_true_answer_is_fully_right(family: str, seed: int) -> None:
    task = draw(family, seed)
    result = grade(task, task.answer)
    assert result.right == result.total == len(result.statements) > 2


@given(families, seeds, st.data())
def test_a_changed_word_is_found(family: str, seed: int, data: st.DataObject) -> None:
    task = draw(family, seed)
    words = re.split(r"(\W+)", task.answer)
    places = [i for i, word in enumerate(words) if re.fullmatch(r"\w+", word)]
    place = data.draw(st.sampled_from(places))
    other = data.draw(st.sampled_from([*{words[i] for i in places}, "Zanzibar", "17"]))
    changed = "".join([*words[:place], other, *words[place + 1 :]])
    result = grade(task, changed)
    assert (result.right < result.total) == (changed != task.answer)


@given(families, seeds, st.data())
def test_a_missing_sentence_is_found(family: str, seed: int, data: st.DataObject) -> None:
    task = draw(family, seed)
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", task.answer)
    if len(sentences) > 1:
        place = data.draw(st.integers(0, len(sentences) - 1))
        result = grade(task, " ".join([*sentences[:place], *sentences[place + 1 :]]))
        assert result.right < result.total


@given(families, seeds)
def test_a_repeated_or_foreign_line_counts_against_the_answer(family: str, seed: int) -> None:
    task = draw(family, seed)
    total = grade(task, task.answer).total
    for extra in (task.answer.splitlines()[-1], "And so on.", "The capital of France is Paris."):
        result = grade(task, f"{task.answer}\n{extra}")
        assert result.total > total
        assert result.right == total


def test_an_empty_answer_misses_every_statement() -> None:
    task = draw("profiles", 1)
    result = grade(task, "")
    assert result.right == 0
    assert {why for _, _, why in result.statements} == {"missing"}


def test_a_wrong_fact_is_named() -> None:
    task = ask("Tell me about France, Japan and Kenya. Use bullet points.")
    wrong = task.answer.replace("Its capital is Paris.", "Its capital is Rome.")
    assert faults(task, wrong) == ["capital of France is 'Paris', not 'Rome'"]


def test_a_true_fact_about_the_wrong_thing_is_wrong() -> None:
    task = ask("Tell me about France, Japan and Kenya. Use bullet points.")
    paris, tokyo = "Its capital is Paris.", "Its capital is Tokyo."
    swapped = task.answer.replace(paris, "#").replace(tokyo, paris).replace("#", tokyo)
    assert len(faults(task, swapped)) == 2


def test_things_out_of_the_asked_order_are_wrong() -> None:
    task = ask("Tell me about France, Japan and Kenya. Use short paragraphs.")
    intro, *parts = task.answer.split("\n\n")
    assert faults(task, "\n\n".join([intro, *parts[::-1]]))


def test_a_wrong_list_mark_is_wrong() -> None:
    task = ask("Tell me about France, Japan and Kenya. Use a numbered list.")
    assert faults(task, task.answer.replace("\n3. ", "\n4. ")) == ["list mark '4.', expected '3.'"]
    bullets = re.sub(r"\n\d\. ", "\n- ", task.answer)
    assert faults(task, bullets) == [f"list mark '-', expected '{n}.'" for n in (1, 2, 3)]


def test_arithmetic_is_recomputed() -> None:
    task = ask("Count down from 50 to 22 in steps of 7. Use bullet points.")
    halfway = task.answer.replace("43 minus 7 is 36", "43 minus 7 is 35")
    assert set(faults(task, halfway)) == {"cannot be read", "missing"}
    wrong = task.answer.replace("is 36, so now we are at 36", "is 35, so now we are at 35")
    assert faults(task, wrong) == ["wrong sum: 35"]


def test_right_arithmetic_on_other_numbers_than_the_prompts_is_wrong() -> None:
    task = ask("Count down from 50 to 22 in steps of 7. Use bullet points.")
    other = ask("Count down from 51 to 23 in steps of 7. Use bullet points.")
    assert len(faults(task, other.answer)) == grade(task, task.answer).total


def test_a_number_must_belong_to_its_element() -> None:
    task = ask("Start at carbon and go up 2, up 3 and down 5 in the periodic table. Use bullet points.")
    wrong = task.answer.replace("number 8 is oxygen", "number 8 is neon")
    assert faults(task, wrong) == ["neon is not element 8"]


def test_a_conclusion_is_checked() -> None:
    task = ask("Tell me about France, Japan and Kenya. How many of them lie in Europe? Use bullet points.")
    assert task.answer.endswith("1 of 3.")
    assert faults(task, task.answer[:-7] + "2 of 3.") == ["k is '2', expected '1'"]


@pytest.mark.parametrize("by", ["topic", "text", "statements"])
def test_structure_of_the_truth_is_fully_right(by: Literal["topic", "text", "statements"]) -> None:
    for task in iter_corpus(0, "heldout", 150):
        result = grade_structure(task, task.document, by)
        assert result.annotated_parts == result.independent_parts == len([*task.document.chunks()])
        assert result.superfluous_parts == 0
        assert result.dependent_left_alone
        assert result.sync_right


@pytest.mark.parametrize("family", ["profiles", "count", "guides", "chain"])
def test_plain_text_leaves_everything_alone_and_marks_nothing(family: str) -> None:
    task = draw(family, 3)
    result = grade_structure(task, Document((Text(task.answer),)))
    assert result.annotated_parts == 0
    assert result.dependent_left_alone
    assert result.sync_right == (family != "count")


def test_a_chunk_over_dependent_steps_is_found() -> None:
    task = draw("chain", 3)
    (text,) = task.document.items
    result = grade_structure(task, Document((Chunk("steps", 100, (text,)),)))
    assert not result.dependent_left_alone
    assert result.independent_parts == result.annotated_parts == 0


def test_a_part_left_plain_is_not_counted_as_annotated() -> None:
    task = draw("profiles", 4)
    items = [*task.document.items]
    place = next(i for i, item in enumerate(items) if isinstance(item, Chunk))
    items[place : place + 1] = items[place].items  # type: ignore[union-attr]
    result = grade_structure(task, Document(tuple(items)))
    assert result.annotated_parts == result.independent_parts - 1
    assert result.dependent_left_alone


def test_a_part_on_something_else_is_superfluous_but_not_dependent() -> None:
    task = draw("profiles", 4)
    stray = Chunk("a stranger", 10, (Text(" Not asked for."),))
    result = grade_structure(task, Document((*task.document.items, stray)))
    assert result.superfluous_parts == 1
    assert result.dependent_left_alone


def test_a_part_within_a_part_that_the_task_does_not_have_is_found() -> None:
    task = draw("profiles", 4)
    *before, last = task.document.items
    assert isinstance(last, Chunk)
    nested = Chunk(last.topic, last.tokens, (Chunk("inner", 10, last.items),))
    assert not grade_structure(task, Document((*before, nested))).dependent_left_alone


def test_a_conclusion_inside_the_last_part_is_found() -> None:
    task = draw("count", 5)
    task = replace(task, spec={**task.spec, "closing": False})
    *parts, _, conclusion = task_of(task.spec).document.items
    last = parts[-1]
    assert isinstance(last, Chunk)
    leaky = Chunk(last.topic, last.tokens, (*last.items, conclusion))
    result = grade_structure(task, Document((*parts[:-1], leaky)))
    assert not result.dependent_left_alone
    assert not result.sync_right


def test_a_wrong_conclusion_inside_the_last_part_is_found() -> None:
    task = draw("compare", 5)
    *parts, _, conclusion = task_of({**task.spec, "closing": False}).document.items
    last, right, wrong = parts[-1], "They all share the same", "They do not all share the same"
    assert isinstance(last, Chunk)
    assert isinstance(conclusion, Text)
    told = conclusion.text.replace(*((right, wrong) if right in conclusion.text else (wrong, right)))
    leaky = Chunk(last.topic, last.tokens, (*last.items, Text(told)))
    assert not grade_structure(task, Document((*parts[:-1], leaky))).dependent_left_alone


def test_a_superfluous_sync_and_a_missing_one_are_found() -> None:
    plain, counting = draw("profiles", 6), draw("count", 6)
    assert not grade_structure(plain, Document((*plain.document.items, Sync()))).sync_right
    without = tuple(item for item in counting.document.items if not isinstance(item, Sync))
    assert not grade_structure(counting, Document(without)).sync_right
    early = (counting.document.items[0], Sync(), *without[1:])
    assert not grade_structure(counting, Document(early)).sync_right


@pytest.mark.parametrize("family", ["count", "compare"])
def test_a_sync_behind_what_reads_the_parts_is_found(family: str) -> None:
    task = draw(family, 6)
    task = task_of({**task.spec, "closing": False})
    *parts, sync, conclusion = task.document.items
    assert sync == Sync()
    assert not grade_structure(task, Document((*parts, conclusion, sync))).sync_right


def test_a_sync_behind_a_chapter_s_count_is_found() -> None:
    task = next(
        t for t in iter_corpus(0, "heldout", 2000) if t.family == "encyclopedia" and "Number of" in t.answer
    )
    *before, last = task.document.items
    assert isinstance(last, Chunk)
    *parts, sync, count = last.items
    assert sync == Sync()
    late = replace(last, items=(*parts, count, sync))
    assert not grade_structure(task, Document((*before, late))).sync_right


def test_nested_counts_may_stand_in_their_chapter() -> None:
    task = next(
        t for t in iter_corpus(0, "heldout", 2000) if t.family == "encyclopedia" and "Number of" in t.answer
    )
    assert grade_structure(task, task.document).dependent_left_alone


def test_grading_reads_every_kind() -> None:
    for kind, rows in FACTS.items():
        names = [*rows][:3]
        spoken = [f"the {n}" if kind in {"animals", "instruments", "rivers"} else n for n in names]
        task = ask(f"Make fact sheets for {spoken[0]}, {spoken[1]} and {spoken[2]}.")
        assert not faults(task, task.answer)


@given(families, seeds, st.text(alphabet="abIt isknowF.0-9:\n?!é", max_size=120))
def test_any_text_can_be_graded(family: str, seed: int, text: str) -> None:
    task = draw(family, seed)
    result = grade(task, text)
    assert result.right <= result.total
    assert result.total >= grade(task, task.answer).total
