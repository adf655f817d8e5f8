"""The fact base: complete, unique, readable."""

import re

import pytest

from pasta.data.atlas.facts import FACTS, KIND_OF, KINDS
from pasta.data.atlas.sentences import FORMS, LINE, STYLES, fact_fields, readings, write


def test_several_hundred_facts_over_at_least_five_kinds() -> None:
    assert len(KINDS) >= 5
    assert sum(len(row) - 1 for rows in FACTS.values() for row in rows.values()) >= 1000


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_filled_and_clean(kind: str) -> None:
    for name, row in FACTS[kind].items():
        for column, value in row.items():
            assert value, (name, column)
            assert value == value.strip()
            assert not re.search(r'["<>\n.!?|]', value), (name, column)


def test_every_name_belongs_to_one_kind() -> None:
    assert len(KIND_OF) == sum(len(rows) for rows in FACTS.values())


def test_elements_stand_in_the_order_of_their_numbers() -> None:
    assert [int(row["number"]) for row in FACTS["elements"].values()] == list(range(1, 55))
    assert len({row["symbol"] for row in FACTS["elements"].values()}) == 54


def test_planets_stand_in_the_order_of_their_numbers() -> None:
    assert [int(row["number"]) for row in FACTS["planets"].values()] == list(range(1, 9))


def test_capitals_are_unique() -> None:
    assert len({row["capital"] for row in FACTS["countries"].values()}) == len(FACTS["countries"])


def test_a_country_lies_next_to_a_place_that_is_not_itself() -> None:
    for name, row in FACTS["countries"].items():
        assert row["beside"] != name


def test_neighbours_that_have_facts_of_their_own_share_a_continent() -> None:
    countries = FACTS["countries"]
    for row in countries.values():
        if row["beside"] in countries and row["beside"] not in {"Colombia", "Panama"}:
            assert countries[row["beside"]]["continent"] == row["continent"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_about_a_thing_is_read_back(kind: str) -> None:
    for name in FACTS[kind]:
        for form in FORMS.values():
            if form.kind != kind or (fields := fact_fields(form.id, name)) is None:
                continue
            assert any(
                other.id == form.id and found == fields for other, found in readings(write(form.id, fields))
            )


def test_profiles_have_several_sentences_and_name_their_subject_first() -> None:
    for templates in STYLES["profile"].values():
        assert len(templates) >= 4
        assert "{name}" in templates[0]


def test_the_line_that_opens_a_portrait_is_said_in_the_same_words() -> None:
    opened = {kind: {*lines.values()} & {STYLES["profile"][kind][0]} for kind, lines in LINE.items()}
    assert [kind for kind, shared in opened.items() if not shared] == ["elements"]


def test_quiz_lines_always_name_their_subject() -> None:
    for lines in LINE.values():
        assert all("{name}" in template for template in lines.values())


def test_articles_fit_their_nouns() -> None:
    assert FACTS["animals"]["eagle"]["young_a"] == "an eaglet"
    assert FACTS["animals"]["salmon"]["young_a"] == "fry"
    assert FACTS["scientists"]["Edwin Hubble"]["job_a"] == "an astronomer"
    assert FACTS["books"]["The Hobbit"]["kind_a"] == "a novel"
