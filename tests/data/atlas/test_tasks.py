"""Tasks: what is sampled, the held-out split, the way back from a prompt."""

import json
import random
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.data.atlas import (
    FAMILIES,
    AtlasTask,
    heldout_prompts,
    iter_corpus,
    sample_task,
    split_of,
    task_for_prompt,
)
from pasta.data.atlas.facts import FACTS
from pasta.data.atlas.plan import LAYOUTS
from pasta.data.atlas.tasks import task_of
from pasta.errors import UserError
from pasta.lang import Sync, parse, render, strip, to_text

families = st.sampled_from(sorted(FAMILIES))
seeds = st.integers(0, 2**32)
CONCLUDING = {"count", "compare"}


def draw(family: str, seed: int, split: str = "train") -> AtlasTask:
    return sample_task(random.Random(seed), split, family)  # type: ignore[arg-type]


def test_at_least_ten_families_and_half_of_them_have_dependent_parts() -> None:
    dependent = [family for family in FAMILIES.values() if not family.independent]
    assert len(FAMILIES) >= 10
    assert len(dependent) + len(CONCLUDING | {"encyclopedia"}) >= len(FAMILIES) / 2


@given(families, seeds)
def test_dependent_tasks_promise_nothing_and_independent_ones_do(family: str, seed: int) -> None:
    task = draw(family, seed)
    assert task.independent == (len([*task.document.chunks()]) > 0) == FAMILIES[family].independent


@given(families, seeds)
def test_a_task_is_found_again_from_its_prompt(family: str, seed: int) -> None:
    task = draw(family, seed)
    assert task_for_prompt(task.prompt) == task


@given(families, seeds)
def test_a_task_is_rebuilt_from_its_spec_through_json(family: str, seed: int) -> None:
    task = draw(family, seed)
    assert task_of(json.loads(json.dumps(task.spec))) == task


@given(families, seeds)
def test_text_form_and_strip_give_the_answer_back(family: str, seed: int) -> None:
    task = draw(family, seed)
    assert parse(to_text(task.document)) == task.document
    assert strip(to_text(task.document)) == render(task.document) == task.answer


@given(families, seeds)
def test_answers_have_the_asked_for_marks(family: str, seed: int) -> None:
    task = draw(family, seed)
    layout = task.spec["layout"]
    bullets = len(re.findall(r"(?m)^- ", task.answer))
    numbers = [int(n) for n in re.findall(r"(?m)^(\d+)\. ", task.answer)]
    if layout == "numbered":
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= 2
    else:
        assert not numbers
    if layout:
        assert (bullets > 0) == (layout == "bullets")
    assert ("\n" not in task.answer) == (layout == "inline")


def test_all_layouts_occur_with_and_without_independence() -> None:
    seen = {(task.independent, task.spec["layout"]) for task in iter_corpus(0, "train", 400)}
    assert {(flag, layout) for flag in (True, False) for layout in LAYOUTS} <= seen


def test_a_sync_stands_exactly_where_a_conclusion_reads_the_parts() -> None:
    for task in iter_corpus(1, "train", 300):
        top = task.document.items.count(Sync())
        nested = sum(chunk.items.count(Sync()) for chunk in task.document.chunks())
        counts = len(re.findall(r"Number of those", task.answer))
        assert top == (task.family in CONCLUDING)
        assert nested == (counts if task.family == "encyclopedia" else 0)


def test_some_answers_are_nested_two_deep() -> None:
    assert {task.document.depth() for task in iter_corpus(2, "train", 200)} == {0, 1, 2}


def test_topics_of_one_thread_are_distinct() -> None:
    for task in iter_corpus(3, "train", 300):
        topics = [item.topic for item in task.document.items if hasattr(item, "topic")]
        assert len(topics) == len(set(topics))


@given(families, seeds)
def test_the_split_ignores_order_layout_and_wording(family: str, seed: int) -> None:
    task = draw(family, seed, "heldout")
    params = dict(task.spec["params"])
    assert split_of(family, params) == "heldout"
    if "names" in params:
        params["names"] = params["names"][::-1]
        assert split_of(family, params) == "heldout"


@pytest.mark.slow
def test_train_and_heldout_share_no_combination() -> None:
    def keys(split: str) -> set[str]:
        tasks = iter_corpus(4, split, 1500)  # type: ignore[arg-type]
        return {json.dumps([t.family, FAMILIES[t.family].key(t.spec["params"])]) for t in tasks}

    assert keys("train").isdisjoint(keys("heldout"))


def test_about_a_tenth_of_the_combinations_is_held_out() -> None:
    rng = random.Random(0)
    family = FAMILIES["profiles"]
    held = sum(split_of("profiles", family.draw(rng)) == "heldout" for _ in range(3000))
    assert 0.07 < held / 3000 < 0.13


@pytest.mark.slow
def test_every_entity_occurs_in_training() -> None:
    text = " ".join(task.answer for task in iter_corpus(5, "train", 2500))
    assert [name for rows in FACTS.values() for name in rows if name not in text] == []


def test_the_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first = [task.prompt for task in iter_corpus(7, "train", 20)]
    assert first == [task.prompt for task in iter_corpus(7, "train", 20)]
    assert first != [task.prompt for task in iter_corpus(8, "train", 20)]


def test_heldout_prompts_are_distinct_held_out_and_in_proportion() -> None:
    tasks = heldout_prompts(200, seed=0)
    assert len({task.prompt for task in tasks}) == 200
    assert all(split_of(task.family, task.spec["params"]) == "heldout" for task in tasks)
    assert {task.family for task in tasks} == set(FAMILIES)
    total = sum(family.weight for family in FAMILIES.values())
    for name, family in FAMILIES.items():
        assert abs(sum(task.family == name for task in tasks) - 200 * family.weight / total) < 1
    assert tasks == heldout_prompts(200, seed=0)


@pytest.mark.slow
def test_more_held_out_prompts_than_there_are_is_refused_with_the_family_that_lacks_them() -> None:
    with pytest.raises(
        UserError, match=r"take \d+ of family '\w+', which has \d+; expected a smaller number"
    ):
        heldout_prompts(13_000)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "hello",
        "Tell me about Atlantis. Use bullet points.",
        "Tell me about France, Japan and Kenya.",
        "Tell me about France and. Use bullet points.",
        "Count down from 10 to 4 in steps of 5. Use bullet points.",
        "Start at xenon and go up 2 and up 3 in the periodic table. Use bullet points.",
        "Build a tower: take one off. Say what it looks like. Use bullet points.",
        "Take me on a tour of the planets from Mars to France. Use bullet points.",
        "Start at the letter X and move on by 2, 3 and 4 letters. Use bullet points.",
        "A trip begins on day 1: 2 days in Atlantis. Tell the trip. Use bullet points.",
    ],
)
def test_other_prompts_are_no_atlas_tasks(prompt: str) -> None:
    assert task_for_prompt(prompt) is None


@given(st.text(max_size=200))
def test_any_text_may_be_asked_about(prompt: str) -> None:
    task = task_for_prompt(prompt)
    assert task is None or task.prompt == prompt.strip()


def test_names_with_commas_of_their_own_words_are_kept_apart() -> None:
    task = task_for_prompt(
        "Tell me about Emma, War and Peace, Crime and Punishment and Hamlet. Use bullet points."
    )
    assert task is not None
    assert task.spec["params"]["names"] == ["Emma", "War and Peace", "Crime and Punishment", "Hamlet"]


def test_an_unknown_split_or_family_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="split 'test'"):
        sample_task(random.Random(0), "test")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="family 'poems'"):
        sample_task(random.Random(0), "train", "poems")


def test_a_family_may_be_named() -> None:
    assert {task.family for task in (draw("chain", seed) for seed in range(5))} == {"chain"}
    assert len([*islice(iter_corpus(0, "train", 5), 10)]) == 5
