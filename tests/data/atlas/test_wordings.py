"""Wordings with alternatives, and that no split has a sentence of another."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pasta.data.atlas.talk.requests import REQUESTS_BY_NAME
from pasta.data.atlas.talk.wordings import TALK_SPLITS, part, variants, word
from pasta.data.atlas.words import read_words

TABLES = (
    "about_it", "backward", "choices", "followups", "forward", "manners", "nouns", "outside", "requests", "small_talk",
    "topics", "yes_no",
)  # fmt: skip


def lists_of(value: Any) -> Iterator[tuple[str, ...]]:
    """All arrays of texts in a table."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from lists_of(inner)
    elif isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from lists_of(inner)


@pytest.mark.parametrize(
    ("wording", "sentences"),
    [
        ("who was {x}", ("who was {x}",)),
        (
            "[what|which] is [the|a] {x}",
            ("what is the {x}", "what is a {x}", "which is the {x}", "which is a {x}"),
        ),
        ("[a [quick|short] look|look]", ("a quick look", "a short look", "look")),
        ("[please|] tell me [now|]", ("please tell me now", "please tell me", "tell me now", "tell me")),
        ("who is [first|], {x}", ("who is first, {x}", "who is, {x}")),
        (" in [short|brief]", (" in short", " in brief")),
    ],
)
def test_a_wording_stands_for_one_sentence_for_each_choice(wording, sentences):
    assert set(variants(wording)) == set(sentences)


@pytest.mark.parametrize("table", TABLES)
def test_sentences_have_no_brackets_and_no_gaps(table):
    for options in lists_of(read_words(table)):
        for text in (text for option in options for text in variants(option)):
            assert not re.search(r"[\[\]|]|  | [,;:?!]", text), text


@pytest.mark.parametrize("table", TABLES)
def test_no_split_has_a_sentence_of_another(table):
    rng = random.Random(0)
    for options in lists_of(read_words(table)):
        if len(options) < 5:  # shared by all
            continue
        stood_for = {
            split: {text for option in part(options, split) for text in variants(option)}
            for split in TALK_SPLITS
        }
        for _ in range(20):
            assert word(rng, "train", options) not in stood_for["dev"] | stood_for["test"]
        for _ in range(3):
            assert word(rng, "dev", options) not in stood_for["test"]
            assert word(rng, "test", options) in stood_for["test"]


@pytest.mark.parametrize("table", TABLES)
def test_what_is_held_out_is_among_the_longest_third_of_its_list(table):
    for options in lists_of(read_words(table)):
        if len(options) < 5:
            continue
        shortest = {option: min(map(len, variants(option))) for option in options}
        for split in ("dev", "test"):
            for option in part(options, split):
                shorter = sum(length <= shortest[option] for length in shortest.values()) - 1
                assert shorter >= len(options) - max(2, len(options) // 3), option


def test_what_something_is_is_asked_plainly_in_training():
    rng = random.Random(0)
    prompts = {REQUESTS_BY_NAME["about"][1](rng, "train").prompt for _ in range(1500)}
    assert any(re.fullmatch(r"What is \w+\?", prompt) for prompt in prompts)


@pytest.mark.parametrize("table", TABLES)
def test_a_split_has_sentences_that_no_later_one_has(table):
    for options in lists_of(read_words(table)):
        for split, later in (("train", ("dev", "test")), ("dev", ("test",))):
            own = {text for option in part(options, split) for text in variants(option)}
            others = {text for other in later for option in part(options, other) for text in variants(option)}
            assert len(options) < 5 or own - others, (split, options)


def test_a_wording_that_stands_for_many_sentences_is_drawn_more_often():
    rng = random.Random(0)
    options = ("[a|b|c|d] [e|f|g|h] {x}", "say {x}")
    assert 300 < sum(word(rng, "train", options) != "say {x}" for _ in range(400)) < 340


def test_every_fact_is_asked_with_the_thing_and_with_a_pronoun():
    lines = read_words("answers")["line"]
    for table in ("forward", "about_it"):
        asked = read_words(table)
        assert {kind: set(attributes) for kind, attributes in lines.items()} == {
            kind: set(attributes) for kind, attributes in asked.items()
        }
        assert all(len(variants_of(options)) >= 20 for rows in asked.values() for options in rows.values())


def variants_of(options: tuple[str, ...]) -> set[str]:
    return {text for option in options for text in variants(option)}
