"""Talk: what people ask in their own words, with the right answers, in three splits."""

import random
from collections import Counter

import pytest

from pasta.data.atlas.corpus import atlas_answers
from pasta.data.atlas.facts import FACTS, SIZES, spoken
from pasta.data.atlas.grading import grade_plan
from pasta.data.atlas.plan import statements
from pasta.data.atlas.sentences import write
from pasta.data.atlas.talk.draw import ASKS, NOUNS
from pasta.data.atlas.talk.people import fill, listed, spell
from pasta.data.atlas.talk.replies import measures, ranked
from pasta.data.atlas.talk.requests import REQUESTS_BY_NAME
from pasta.data.atlas.talk.talks import sample_talk
from pasta.data.atlas.talk.typos import typo
from pasta.data.atlas.talk.wordings import TALK_SPLITS, part, split_of_names
from pasta.data.atlas.tasks import split_of
from pasta.lang import Chunk, render, to_text


def sample_talks(split, count):
    rng = random.Random(f"talk:1:{split}")
    return [sample_talk(rng, split) for _ in range(count)]


TALKS = {split: sample_talks(split, 300) for split in TALK_SPLITS}


def test_the_right_answer_of_every_talk_gets_full_marks():
    for talk in TALKS["train"] + TALKS["dev"] + TALKS["test"]:
        grade = grade_plan(talk.plan, render(talk.document))
        assert grade.right == grade.total > 0, (talk.messages, grade.statements)


def test_an_answer_that_repeats_a_part_does_not():
    talk = next(talk for talk in TALKS["train"] if talk.kind == "each")
    answer = render(talk.document)
    grade = grade_plan(talk.plan, answer + answer[answer.index("\n") :])
    assert grade.right < grade.total


def test_no_answer_marks_a_part_twice():
    for talk in TALKS["train"]:
        topics = Counter(item.topic for item in talk.document.items if isinstance(item, Chunk))
        assert set(topics.values()) <= {1}, talk.messages


def test_the_same_seed_gives_the_same_talks():
    again = sample_talks("dev", 20)
    assert [(talk.messages, to_text(talk.document)) for talk in again] == [
        (talk.messages, to_text(talk.document)) for talk in TALKS["dev"][:20]
    ]


@pytest.mark.parametrize("options", [ASKS["about"], ASKS["each"], NOUNS["of"], ASKS["compare"]])
def test_a_wording_belongs_to_one_split(options):
    parts = [set(part(options, split)) for split in TALK_SPLITS]
    assert set().union(*parts) == set(options)
    assert sum(map(len, parts)) == len(set(options))


def test_a_combination_of_names_belongs_to_one_split_in_any_order():
    names = ["Mars", "Venus", "Jupiter"]
    assert split_of_names(names) == split_of_names(names[::-1])


def test_training_compares_nothing_that_the_families_hold_out():
    rng = random.Random(0)
    for _ in range(100):
        turn = REQUESTS_BY_NAME["compare"][1](rng, "train")
        assert split_of("compare", {"names": list(turn.names)}) == "train"


def test_conversations_alternate_and_end_with_a_request():
    roles = {tuple(message["role"] for message in talk.messages) for talk in TALKS["train"]}
    assert ("user",) in roles
    assert ("user", "assistant", "user") in roles
    assert all(turns == ("user", "assistant") * (len(turns) // 2) + ("user",) for turns in roles)


def test_every_kind_of_request_is_drawn_in_every_split():
    rng = random.Random(3)
    for _, request in REQUESTS_BY_NAME.values():
        for split in TALK_SPLITS:
            assert request(rng, split).prompt.strip()


def test_lists_come_with_the_separators_of_people():
    rng = random.Random(0)
    texts = [listed(rng, ["France", "Peru", "Kenya"]) for _ in range(300)]
    assert {
        "France, Peru and Kenya",
        "France/Peru/Kenya",
        "France & Peru & Kenya",
        "\nFrance\nPeru\nKenya",
    } <= {*texts}


def test_a_typo_is_one_letter():
    rng = random.Random(0)
    for _ in range(200):
        text = typo(rng, "describe Jupiter")
        assert abs(len(text) - len("describe Jupiter")) <= 1
        assert text[0] == "d"
        assert text != "describe Jupiter"


def test_a_typo_turns_no_name_into_another():
    rng = random.Random(0)
    names = [name for rows in FACTS.values() for name in rows]
    short = {name for name in names if len(name) < 4}  # stays as it is
    assert {typo(rng, name) for name in names for _ in range(50)} & set(names) <= short


def test_one_name_in_six_is_misspelt():
    rng = random.Random(0)
    told = [spell(rng, "Jupiter").removeprefix("the ").removeprefix("planet ") for _ in range(400)]
    assert 50 < sum(text != "Jupiter" for text in told) < 80


def test_a_misspelt_name_is_named_rightly_in_the_answer():
    rng = random.Random(0)
    for _ in range(50):
        turn = REQUESTS_BY_NAME["spelling"][1](rng, "train")
        assert all(name in turn.plan[0].fields["names"] for name in turn.names)


def test_sizes_cover_their_kinds():
    assert SIZES.keys() == {*FACTS["countries"], *FACTS["rivers"], *FACTS["planets"]}


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("gas", "list the gases"),
        ("fish", "list the fish"),
        ("novel", "list the novels"),
        ("memory", "list the memories"),
    ],
)
def test_the_plural_of_a_value_is_a_word(value, asked):
    assert fill("list the {v}s", value) == asked


def test_ranks_are_also_asked_with_verbs():
    rng = random.Random(0)
    prompts = " ".join(REQUESTS_BY_NAME["rank"][1](rng, "train").prompt.lower() for _ in range(1500))
    assert "born first" in prompts


def test_the_largest_is_named_and_things_of_nearly_one_size_are_not_ranked():
    say = ranked(["France", "Brazil", "Peru"], "size", highest=True, what="largest")
    assert say is not None
    assert say.fields["name"] == "Brazil"
    assert ranked(["Belgium", "Albania"], "size", highest=True, what="largest") is None


@pytest.mark.parametrize("kind", ["rank", "which_of"])
def test_a_choice_is_made_after_what_it_goes_by(kind):
    rng = random.Random(0)
    for _ in range(100):
        turn = REQUESTS_BY_NAME[kind][1](rng, "train")
        says = [*statements(turn.plan)]
        assert says[-1].form in {"rank", "choice"}
        whole = len(turn.names) == len(FACTS["planets"]) or kind == "which_of"
        assert whole or len(says) > len(turn.names)


def test_a_line_of_a_rank_states_a_number_and_then_whose_is_the_best_so_far():
    lines = measures(["Fiji", "Canada", "Peru"], "size", highest=True)
    assert [[write(say.form, say.fields) for say in line] for line in lines] == [
        ["By size, Fiji is number 62 of the countries I know.", "Lowest of one: 62, Fiji."],
        ["By size, Canada is number 1 of the countries I know.", "Lowest of two: 1, Canada."],
        ["By size, Peru is number 11 of the countries I know.", "Lowest of three: 1, Canada."],
    ]


def test_of_equal_numbers_the_first_stays_the_best():
    lines = measures(["horse", "lion", "cobra"], "legs", highest=True)
    assert [says[1].fields["name"] for says in lines] == ["horse"] * 3
    assert [says[1].fields["n"] for says in lines] == ["4"] * 3


def test_the_last_best_of_a_rank_is_the_one_that_the_answer_names():
    rng = random.Random(0)
    for _ in range(200):
        *_, best, end = statements(REQUESTS_BY_NAME["given"][1](rng, "train").plan)
        assert end.fields["name"] == spoken(best.fields["name"])


def test_a_share_of_a_corpus_is_talk():
    plain = {messages[0]["content"] for messages, _ in atlas_answers(7, "train", 40)}
    talk = [messages for messages, _ in atlas_answers(7, "train", 40, talk=1.0)]
    assert len(talk) == 40
    assert not plain & {messages[0]["content"] for messages in talk}
