"""Kinds of requests: that people's ways to ask are among them, and that the graders find their answers right."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.atlas.facts import FACTS, KIND_OF
from pasta.data.atlas.grading import grade_plan
from pasta.data.atlas.plan import Part, Say, statements, to_document
from pasta.data.atlas.sentences import write
from pasta.data.atlas.talk.draw import COUNTS, Turn, draw_some, with_pronouns
from pasta.data.atlas.talk.followups import FOLLOW_UPS, about_it, about_them, one_of_them
from pasta.data.atlas.talk.frames import clause, typed
from pasta.data.atlas.talk.replies import portrait, portraits
from pasta.data.atlas.talk.requests import REQUESTS_BY_NAME
from pasta.data.atlas.talk.wordings import TALK_SPLITS, split_of_names
from pasta.evaluation.people.check import faults
from pasta.evaluation.people.prompts import ExpectedTurn
from pasta.lang import render

SPLITS = st.sampled_from(TALK_SPLITS)
SEEDS = st.integers(0, 2**32)


def drawn(name: str, count: int, split="train") -> list[Turn]:
    rng = random.Random(f"{name}:{split}")
    return [REQUESTS_BY_NAME[name][1](rng, split) for _ in range(count)]


def answer(turn: Turn) -> str:
    return render(to_document(turn.plan))


def prompts(name: str, count: int = 400) -> str:
    return "\n".join(turn.prompt.lower() for turn in drawn(name, count))


@settings(max_examples=300)
@given(SEEDS, SPLITS, st.sampled_from(sorted(REQUESTS_BY_NAME)))
def test_the_answer_to_every_request_gets_full_marks(seed, split, name):
    turn = REQUESTS_BY_NAME[name][1](random.Random(seed), split)
    grade = grade_plan(turn.plan, answer(turn))
    assert grade.right == grade.total > 0, (turn.prompt, grade.statements)
    assert not re.search(r"[{}\[\]]", turn.prompt), turn.prompt


@settings(max_examples=200)
@given(SEEDS, SPLITS, st.sampled_from(["fact", "each", "rank", "about", "compare"]))
def test_the_answer_to_every_next_turn_gets_full_marks(seed, split, first):
    rng = random.Random(seed)
    before = REQUESTS_BY_NAME[first][1](rng, split)
    for _, follow_up in FOLLOW_UPS:
        if (turn := follow_up(rng, split, before)) is not None:
            grade = grade_plan(turn.plan, answer(turn))
            assert grade.right == grade.total > 0, (turn.prompt, grade.statements)
            assert not re.search(r"[{}\[\]]", turn.prompt), turn.prompt


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("what does the fox eat", "what the fox eats"),
        ("how do the Rhine and the Indus differ", "how the Rhine and the Indus differ"),
        ("where did Volta come from", "where Volta came from"),
        ("how many moons does Mars have", "how many moons Mars has"),
        ("does Saturn have rings", "whether Saturn has rings"),
        ("what can I see in Peru", "what I can see in Peru"),
        ("what is a tuba made of", "what a tuba is made of"),
        ("who wrote Emma", "who wrote Emma"),
        ("who was born first: Koch or Watt", "who was born first: Koch or Watt"),
        ("which river is in Asia", "which river is in Asia"),
        ("describe the owl", None),
        ("what does the fox eat? who wrote Emma", None),
        ("what is a tuba made of, and where is Peru", None),
    ],
)
def test_a_question_becomes_a_clause(question, told):
    assert clause(question) == told


def test_a_request_comes_with_excuses_politeness_and_asides():
    rng = random.Random(0)
    texts = "\n".join(typed(rng, "what does the fox eat", "train").lower() for _ in range(600))
    for part in ("sorry", "if you", "what the fox eats", "thank", "good morning"):
        assert part in texts, part


def test_a_fact_is_asked_with_the_thing_first_and_last_too():
    texts = [turn.prompt for turn in drawn("fact", 400)]
    assert sum(re.search(r"^[^?]*(: |\. | - ).*\bit\b", text.lower()) is not None for text in texts) > 10
    assert (
        sum(
            re.search(r"\b(it|its|there|he|his)\b.*(, | - |\? |\()", text.lower()) is not None
            for text in texts
        )
        > 3
    )


def test_questions_go_back_from_every_kind_of_thing_to_the_one_that_has_the_value():
    turns = drawn("backward", 600)
    one = [turn for turn in turns if len(turn.names) == 1]
    assert {KIND_OF[turn.names[0]] for turn in one} == set(FACTS)
    assert len({(KIND_OF[turn.names[0]], turn.attribute) for turn in one}) > 25
    assert {turn.names[0] for turn in turns} >= {"Alfred Nobel", "Mars", "Hungary"}
    assert any(len(turn.names) > 1 and turn.plan[0].form == "they" for turn in turns)


def test_a_line_or_two_on_each_holds_two_facts_of_each():
    for turn in drawn("few_each", 60) + drawn("few_each", 20, "dev"):
        parts = [node for node in turn.plan if isinstance(node, Part)]
        assert [part.topic for part in parts] == list(turn.names)
        assert all(len(part.items) == 2 for part in parts)
        wanted = ExpectedTurn(turn.prompt, things=turn.names, facts=2)
        assert faults(wanted, answer(turn), "stop", 1 + len(parts)) == []


def test_a_rundown_is_a_portrait_of_each():
    turns = [turn for turn in drawn("each", 600) if "rundown" in turn.prompt.lower()]
    assert turns
    for turn in turns:
        assert sum(isinstance(node, Part) for node in turn.plan) == len(turn.names)


def test_people_are_also_asked_for_as_people():
    assert re.search(r"who (were|are) ", prompts("each", 800))


def test_the_number_that_is_picked_is_the_largest_or_smallest_of_those_in_the_prompt():
    for turn in drawn("numbers", 200) + drawn("numbers", 50, "dev"):
        given = [int(digits) for digits in re.findall(r"\d+", turn.prompt)]
        *lines, say = statements(turn.plan)
        assert [int(each.fields["n"]) for each in lines if each.form == "number"] == (given if lines else [])
        if say.form == "rank":
            assert lines
            best = max(given) if say.fields["what"] in {"largest", "latest"} else min(given)
            assert say.fields["name"] in {str(best), f"the {best}th century"}, turn.prompt
        else:
            assert not lines
            assert [int(digits) for digits in re.findall(r"\d+", say.fields["names"])] == sorted(given)


@pytest.mark.parametrize("split", TALK_SPLITS)
def test_a_combination_of_numbers_belongs_to_one_split(split):
    for turn in drawn("numbers", 60, split):
        assert split_of_names(re.findall(r"\d+", turn.prompt)) == split


def test_a_choice_among_told_values_goes_by_what_the_prompt_tells():
    as_told = 0
    for turn in drawn("given", 60):
        _, *lines, end = statements(turn.plan)
        assert end.form == "rank"
        assert sum(char.isdigit() for char in turn.prompt) or " legs" in turn.prompt.lower()
        as_told += all(write(say.form, say.fields).lower() in turn.prompt.lower() for say in lines[::2])
    assert as_told > 45  # the others have a typo


@pytest.mark.slow
def test_a_choice_is_also_of_the_one_that_has_a_value_not():
    turns = drawn("which_of", 300)
    assert re.search(r"(isn't|is not|isnt|doesn't|does not)", prompts("which_of"))
    assert re.search(r"odd one out|doesn't fit|belong", prompts("which_of"))
    for turn in turns:
        (name,) = turn.names
        opening, *lines, found, end = statements(turn.plan)
        facts, notes = lines[::2], lines[1::2]
        assert [say.subject for say in facts] == [say.fields["name"] for say in notes]
        values = {say.fields["name"]: say.fields["value"] for say in notes}
        negated = opening.form == "unwanted"
        fitting = [each for each, value in values.items() if (value == opening.fields["value"]) != negated]
        assert fitting == [name]
        assert found.fields == {"name": name, "value": values[name]}
        assert end.form == "choice"
        wanted = ExpectedTurn(turn.prompt, things=tuple(values), choice=name, superlatives=("so",))
        assert faults(wanted, answer(turn), "stop", 1) == []


def test_two_things_are_compared_in_places_of_their_own():
    texts = prompts("compare")
    for part in ("against", "what's the difference", "in common", "differ", "alike"):
        assert part in texts, part


def test_a_next_question_speaks_of_a_person_as_he_or_she():
    assert (
        with_pronouns("where did {p} come from, and {s} job", "Marie Curie")
        == "where did she come from, and her job"
    )
    rng = random.Random(0)
    texts = [
        about_it(rng, "train", Turn("", portrait("James Watt"), ("James Watt",))).prompt.lower()
        for _ in range(200)
    ]
    assert sum(re.search(r"\b(he|him|his)\b", text) is not None for text in texts) > 80
    assert not any(re.search(r"\b(she|her)\b", text) for text in texts)


def test_of_several_things_a_next_question_asks_for_them():
    rng = random.Random(0)
    before = Turn("", portraits(["tuba", "gong"], "bullets"), ("tuba", "gong"))
    texts = [about_them(rng, "train", before).prompt.lower() for _ in range(200)]
    assert sum(re.search(r"\b(they|them|their|those)\b", text) is not None for text in texts) > 100
    assert not any(re.search(r"\b(is|does|do i \w+) it\b", text) for text in texts)


def test_a_next_turn_picks_the_one_with_a_value():
    rng = random.Random(0)
    before = Turn("", portraits(["owl", "wolf", "fox"], "bullets"), ("owl", "wolf", "fox"))
    for _ in range(40):
        turn = one_of_them(rng, "train", before)
        assert turn is not None
        assert set(turn.names) <= set(before.names)
        *_, found, end = statements(turn.plan)
        assert found.before == "\n\n"
        assert end == Say("choice", {"name": f"the {turn.names[0]}"})


def test_what_the_atlas_does_not_know_is_asked_of_what_it_knows_too():
    turns = drawn("outside", 900)
    assert all([say.form for say in statements(turn.plan)] == ["outside"] for turn in turns)
    texts = "\n".join(turn.prompt.lower() for turn in turns)
    for part in ("rain", "how do i", "cost", "who won", "news"):
        assert part in texts, part
    assert (
        sum(any(name in text for name in ("copper", "france", "mars", "tiger")) for text in texts.split("\n"))
        > 8
    )


def test_a_greeting_is_greeted():
    turns = [turn for turn in drawn("small_talk", 200) if "how are you" in turn.prompt.lower()]
    assert turns
    for turn in turns:
        assert faults(ExpectedTurn(turn.prompt, greeting=True), answer(turn), "stop", 1) == []


def test_some_of_a_kind_are_the_first_of_it():
    rng = random.Random(0)
    drawn_sets = [draw_some(rng) for _ in range(300)]
    numbers = {word: count for count, words in COUNTS.items() for word in words}
    assert all(len(names) == numbers[called.split()[0]] for names, called in drawn_sets)
    of_planets = [names for names, called in drawn_sets if called.split(" ", 1)[1] == "planets"]
    assert of_planets
    assert all(names == list(FACTS["planets"])[: len(names)] for names in of_planets)
