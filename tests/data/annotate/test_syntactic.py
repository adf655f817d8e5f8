"""Lists and paragraphs become chunks by their layout alone."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta.data.annotate.syntactic import SyntacticSection, annotate_text
from pasta.lang import render, to_text
from tests.support.documents import texts
from tests.support.paths import ROOT

#: Published answers to the prompts of AlpacaEval, ``MODEL.outputs.json``; tests that need them skip without.
ALPACA_EVAL = Path(os.environ.get("PASTA_ALPACA_EVAL", ROOT.parent / "shared" / "data" / "alpaca_eval"))
PIECES = [
    "\n",
    "\n\n",
    "- ",
    "* ",
    "1. ",
    "2. ",
    "  - ",
    "**Tea:** ",
    "Tea: ",
    "# ",
    "```\n",
    "| a |",
    "One. Two. ",
    "x",
]


def shown(answer: str, **options: Any) -> str:
    """The annotated answer with ``[topic|`` and ``]`` for tags, which reads better."""
    document = annotate_text(answer, SyntacticSection(**options))
    assert render(document) == answer
    text = to_text(document).replace("</async>", "]").replace('" tokens="10"/><async>', "|")
    return text.replace('<promise topic="', "[").replace("<sync/>", "~")


def test_items_after_their_titles() -> None:
    answer = "Try:\n- Tea: it is hot.\n- **Iced coffee** is cold.\n\nEnjoy!"
    assert (
        shown(answer) == "Try:\n- Tea:[Tea| it is hot.]\n- **Iced coffee**[Iced coffee| is cold.]\n\nEnjoy!"
    )


def test_items_without_titles_are_named_by_their_first_words() -> None:
    answer = "1. Boil the water in a pot.\n2. Stir."
    assert shown(answer) == "1. [Boil the water in|Boil the water in a pot.]\n2. [Stir|Stir.]"


def test_the_first_sentence_of_an_item_may_be_its_title() -> None:
    answer = "- Boil the water in a pot. Stir it well.\n- Then let it cool down."
    expected = "- Boil the water in a pot.[Boil the water in| Stir it well.]\n- Then let it cool down."
    assert shown(answer, untitled="sentence") == expected


def test_a_first_sentence_that_ends_in_a_list_inside_the_item_is_cut_before_it() -> None:
    answer = "- Fruit\n  - apples: they are red fruit. They grow.\n  - pears: green.\n- Ice is cold."
    expected = (
        "- Fruit[Fruit|\n  - apples:[apples| they are red fruit. They grow.]\n  - pears:[pears| green.]]\n"
        "- Ice is cold."
    )
    assert shown(answer, untitled="sentence", max_depth=2) == expected


def test_topics_may_be_as_short_as_they_can() -> None:
    answer = "- Tea: it is hot.\n- Ice: it is cold."
    assert shown(answer, topics="shortest") == "- Tea:[x| it is hot.]\n- Ice:[x| it is cold.]"


def test_a_chunk_without_its_title_needs_a_topic_that_says_it() -> None:
    with pytest.raises(ValueError, match="expected head: parent"):
        SyntacticSection(head="chunk", topics="shortest")


def test_a_chunk_may_hold_its_marker_and_title() -> None:
    assert shown("- Tea: hot.\n- Ice: cold.", head="chunk") == "[Tea|- Tea: hot.]\n[Ice|- Ice: cold.]"


def test_what_belongs_to_an_item_is_in_its_chunk() -> None:
    answer = "1. Tea: hot\n   and wet.\n\n   - green\n   - black\n\n2. Ice: cold."
    expected = "1. Tea:[Tea| hot\n   and wet.\n\n   - green\n   - black]\n\n2. Ice:[Ice| cold.]"
    assert shown(answer) == expected


def test_paragraphs_between_numbers_belong_to_the_number_before() -> None:
    answer = "1. **Tea**\n\nIt is hot.\n\n* green\n\n2. **Ice**\n\nIt is cold."
    expected = "1. **Tea**[Tea|\n\nIt is hot.\n\n* green]\n\n2. **Ice**\n\nIt is cold."
    assert shown(answer, paragraphs=False) == expected


def test_a_list_that_begins_again_ends_the_one_before() -> None:
    answer = (
        "1. Take a cup.\n2. Fill it.\n\n**Serving:**\n1. Take a spoon.\n2. Stir with it.\n3. Drink the tea."
    )
    expected = (
        "1. [Take a cup|Take a cup.]\n2. [Fill it|Fill it.]\n\n**Serving:**\n"
        "1. [Take a spoon|Take a spoon.]\n2. [Stir with it|Stir with it.]\n3. [Drink the tea|Drink the tea.]"
    )
    assert shown(answer) == expected


def test_a_paragraph_that_announces_what_follows_is_no_chunk() -> None:
    answer = (
        "Tea is made from leaves. Two kinds:\n\n- Green: mild.\n- Black: strong.\n\nBoth are hot and wet."
    )
    assert shown(answer) == (
        "Tea is made from leaves. Two kinds:\n\n- Green:[Green| mild.]\n- Black:[Black| strong.]\n\n"
        "Both are hot and wet."
    )


def test_lists_in_items_become_chunks_of_chunks_if_asked() -> None:
    answer = "- Hot:\n  - tea: leaves\n  - coffee: beans\n- Cold:\n  - water\n  - ice"
    expected = (
        "- Hot:[Hot|\n  - tea:[tea| leaves]\n  - coffee:[coffee| beans]]\n"
        "- Cold:[Cold|\n  - [water|water]\n  - [ice|ice]]"
    )
    assert shown(answer, max_depth=2) == expected


def test_paragraphs_after_their_first_sentence() -> None:
    answer = "Tea is made from leaves. It is hot.\n\nCoffee is made from beans. It is black."
    expected = (
        "Tea is made from leaves.[Tea is made from| It is hot.]\n\n"
        "Coffee is made from beans.[Coffee is made from| It is black.]"
    )
    assert shown(answer) == expected


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("Чай делают из листьев чайного куста.", " Его заваривают горячей водой."),
        ("Le thé vient des feuilles du théier.", " À chacun le sien."),
        ("चाय पौधे की पत्तियों से बनती है।", " इसे गरम पानी में पकाते हैं।"),
        ("茶由茶树的叶子经过采摘和烘干以后制成的。", "人们用热水冲泡它。"),
        ("Tea costs a dollar, e.g. étagère prices vary.", " It is hot."),
    ],
)
def test_sentences_end_in_any_language(first: str, rest: str) -> None:
    paragraph = f"{first}{rest}"
    annotated = shown(f"{paragraph}\n\n{paragraph}")
    assert annotated.count("[") == 2
    assert annotated.startswith(f"{first}[")
    assert annotated.endswith(f"|{rest}]")


def test_titles_and_topics_in_a_script_without_spaces() -> None:
    answer = "1. 茶：由干叶制成。\n2. **咖啡**：由种子制成。\n3. 可可由可可树的种子经过发酵和烘焙制成。"
    assert shown(answer) == (
        "1. 茶：[茶|由干叶制成。]\n2. **咖啡**：[咖啡|由种子制成。]\n"
        "3. [可可由可可树的种|可可由可可树的种子经过发酵和烘焙制成。]"
    )
    mixed = "- Python 是一种编程语言，由吉多创造。\n- ชาเขียวทำจากใบชา"
    assert "[Python 是一种编程语言|" in shown(mixed)
    assert "[ชาเขียวท|" in shown(mixed)
    counted = "一、茶由茶树的叶子经过采摘和烘干以后制成。人们用热水冲泡它。"
    assert "[一、茶由茶树的叶子经|" in shown(f"{counted}\n\n{counted}")


def test_a_closing_paragraph_waits_if_asked() -> None:
    answer = "- Tea: hot.\n- Ice: cold.\n\nSo they differ in warmth. Much."
    assert "\n\n~So they differ in warmth. Much." in shown(answer, sync="conclusion")
    assert "~" not in shown(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "One paragraph only. It has two sentences.",
        "- a single item",
        "```\n- code\n- code\n```",
        "# A heading. Twice.\n\n| a. B | c |",
        "- [ ",
        "",
    ],
)
def test_what_is_neither_list_nor_paragraphs_is_left_alone(answer: str) -> None:
    assert "|" not in shown(answer).replace("| a. B | c |", "")


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), texts), max_size=20).map("".join))
def test_any_text_is_stripped_to_again(answer: str) -> None:
    nested = SyntacticSection(untitled="sentence", max_depth=3)
    for options in (
        SyntacticSection(),
        SyntacticSection(head="chunk", max_depth=3, sync="conclusion"),
        nested,
    ):
        assert render(annotate_text(answer, options)) == answer


@pytest.mark.slow
def test_real_answers_are_stripped_to_again_and_most_have_chunks() -> None:
    files = sorted(ALPACA_EVAL.glob("*.outputs.json"))
    if not files:
        pytest.skip(f"no answers in {ALPACA_EVAL}; set PASTA_ALPACA_EVAL")
    answers = [record["output"] for file in files for record in json.loads(file.read_text(encoding="utf-8"))]
    documents = [annotate_text(answer, SyntacticSection()) for answer in answers]
    assert [render(document) for document in documents] == answers
    assert sum(any(document.chunks()) for document in documents) > 0.6 * len(answers)
