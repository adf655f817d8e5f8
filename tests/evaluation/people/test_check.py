"""Right and wrong answers of each kind are told apart."""

import pytest

from pasta.evaluation.people.check import faults
from pasta.evaluation.people.prompts import SPLITS, ExpectedTurn, read_conversations, split_file

AUTHOR = ExpectedTurn("who wrote Emma?", things=("Emma",), contains=("Austen",), only=("author",))
MOONS = ExpectedTurn("How many moons has Mars?", things=("Mars",), contains=("2",), only=("moons",))
OVERVIEW = ExpectedTurn(
    "tiger/owl/salmon", things=("tiger", "owl", "salmon"), facts=2, only=("class", "legs")
)
COMPARISON = ExpectedTurn(
    "France vs Japan", things=("France", "Japan"), facts=2, compares=True, only=("capital", "continent")
)
ELEMENTS = ExpectedTurn("copper & zinc", things=("copper", "zinc"), facts=2, only=("group", "use"))
OLDEST = ExpectedTurn(
    "Which is oldest?", things=("Emma", "Hamlet"), choice="Hamlet", superlatives=("oldest", "first")
)
INDIAN = ExpectedTurn(
    "Which ends in the Indian Ocean?",
    things=("Nile", "Zambezi"),
    choice="Zambezi",
    superlatives=("Indian Ocean",),
)
USES = ExpectedTurn("Their uses?", things=("neon", "tin"), about={"neon": ("sign",), "tin": ("solder",)})
GREETING = ExpectedTurn("Hello!", greeting=True)
OUTSIDE = ExpectedTurn("Who won?", scope=True, without=("won",))
POPULATION = ExpectedTurn("Population of Japan?", things=("Japan",), scope=True)


def wrong(turn: ExpectedTurn, answer: str, finish_reason: str = "stop", threads: int = 1) -> list[str]:
    return faults(turn, answer, finish_reason, threads)


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        (AUTHOR, "Jane Austen wrote Emma."),
        (AUTHOR, "**Emma** was written by Jane Austen in the nineteenth century."),
        (MOONS, "Mars has two moons."),
        (
            COMPARISON,
            "Side by side:\n- France lies in Europe. Japan lies in Asia.\n"
            "- The capital of France is Paris. The capital of Japan is Tokyo.",
        ),
        (MOONS, "It has 2 moons: Phobos and Deimos."),
        (
            OVERVIEW,
            "The tiger is a mammal with four legs.\n\nThe owl is a bird. It has 2 legs and eats mice.\n\n"
            "Salmon are fish. They have no legs.",
        ),
        (
            OVERVIEW,
            "Tiger\n- mammal\n- four legs\n\nOwl\n- bird\n- two legs\n\nSalmon\n- fish\n- no legs",
        ),
        (
            COMPARISON,
            "France is in Europe, while Japan is in Asia. The capital of France is Paris; Japan's is Tokyo.",
        ),
        (
            COMPARISON,
            "France and Japan have capitals: Paris and Tokyo. France is in Europe, and the other is in Asia.",
        ),
        (
            ELEMENTS,
            "Copper is a transition metal. In the periodic table it follows nickel. It makes electric wires.\n\n"
            "Zinc is a transition metal. It stands right after copper. It is used in rustproof buckets.",
        ),
        (OLDEST, "Hamlet is the oldest of them."),
        (OLDEST, "Of Emma and Hamlet, the oldest is Hamlet."),
        (OLDEST, "Emma is from the 19th century and Hamlet from the 17th, so Hamlet is the oldest."),
        (OLDEST, "Emma is of the 19th century.\nHamlet is of the 17th century.\nSo it is Hamlet."),
        (OLDEST, "Emma is of the 19th century and Hamlet of the 17th, so it is Hamlet."),
        (OLDEST, "Hamlet."),
        (INDIAN, "The Nile ends in the Mediterranean Sea and the Zambezi ends in the Indian Ocean."),
        (INDIAN, "The Zambezi does. The Nile does not end in the Indian Ocean."),
        (USES, "Neon is used in bright signs and tin in solder."),
        (USES, "Neon: bright signs\nTin: solder"),
        (GREETING, "Hello! Ask me about countries such as France and Spain, or about planets."),
        (OUTSIDE, "I do not know that, but I know about countries, planets, animals and rivers."),
        (POPULATION, "I only know its capital, continent, currency, language and a famous dish."),
    ],
)
def test_a_right_answer_has_no_fault(turn: ExpectedTurn, answer: str):
    assert wrong(turn, answer) == []


@pytest.mark.parametrize(
    ("turn", "answer", "fault"),
    [
        (AUTHOR, "", "says nothing"),
        (AUTHOR, "Emma is a novel.", "lacks 'Austen'"),
        (AUTHOR, "Emma is by Jane Austen. Emma is by Leo Tolstoy.", "says 'leo tolstoy' of Emma"),
        (AUTHOR, "Jane Austen wrote Emma. Neon is a gas.", "speaks of neon unasked"),
        (
            AUTHOR,
            "Fact sheet: Emma\nAuthor: Jane Austen\nCentury: 19\nLanguage: English\nKind: novel",
            "4 facts about Emma, expected at most 3",
        ),
        (AUTHOR, "Emma is by Jane Austen and is paid with the Indian rupee.", "says 'indian rupee' of Emma"),
        (MOONS, "Mars has no moons.", "lacks '2'"),
        (MOONS, "Mars has two moons. Mars is an alkali metal.", "says 'alkali metal' of Mars"),
        (
            OVERVIEW,
            "The tiger is a bird with four legs. The owl is a bird with two legs. Salmon are fish with no legs.",
            "says 'bird' of tiger",
        ),
        (
            OVERVIEW,
            "The tiger is a mammal with four legs. The owl is a bird with two legs.",
            "does not name salmon",
        ),
        (
            OVERVIEW,
            "The tiger, the owl and the salmon. The owl is a bird with two legs. Salmon are fish with no legs.",
            "0 facts about tiger, expected 2",
        ),
        (
            COMPARISON,
            "France: Europe, capital Paris. Japan: Asia, capital Tokyo.",
            "does not compare",
        ),
        (
            COMPARISON,
            "France is in Asia, while Japan is in Asia. The capitals are Paris and Tokyo.",
            "says 'asia' of France",
        ),
        (
            COMPARISON,
            "France is in Asia, Japan is in Europe. The capitals of France and Japan are Paris and Tokyo.",
            "says 'asia' of France",
        ),
        (
            COMPARISON,
            "France is in Europe, its capital is Paris. Japan is in Asia, its capital is Tokyo.\n"
            "In France people speak French. The yen is the money of Japan.",
            "does not compare",
        ),
        (OLDEST, "Emma is the oldest.", "chooses Emma, expected Hamlet"),
        (OLDEST, "Emma is older than Hamlet.", "chooses Emma, expected Hamlet"),
        (OLDEST, "Emma and Hamlet are the oldest.", "chooses Emma, expected Hamlet"),
        (INDIAN, "The Nile ends in the Indian Ocean and the Zambezi too.", "chooses Nile, expected Zambezi"),
        (
            INDIAN,
            "The Zambezi ends in no sea and the Nile ends in the Indian Ocean.",
            "chooses Nile, expected Zambezi",
        ),
        (OLDEST, "The oldest is a play.", "chooses none, expected Hamlet"),
        (
            OLDEST,
            "Hamlet is of the 17th century. Emma is of the 19th century. So it is Emma.",
            "chooses Emma, expected Hamlet",
        ),
        (USES, "Tin is used in bright signs. Neon is used in solder.", "lacks 'sign' of neon"),
        (GREETING, "The tiger is a mammal.", "does not greet"),
        (GREETING, "Hello! The tiger is a mammal.", "states a fact about tiger unasked"),
        (OUTSIDE, "France won. I know countries, planets and rivers.", "says 'won'"),
        (OUTSIDE, "I do not know that.", "does not say what the model knows"),
        (POPULATION, "Japan has many people.", "does not say what the model knows"),
    ],
)
def test_a_wrong_answer_has_its_fault(turn: ExpectedTurn, answer: str, fault: str):
    assert fault in wrong(turn, answer)


def test_an_answer_that_was_cut_is_wrong():
    assert wrong(AUTHOR, "Jane Austen wrote Emma.", "length") == ["does not end by itself (length)"]


def test_an_answer_of_too_many_threads_is_wrong():
    assert wrong(AUTHOR, "Jane Austen wrote Emma.", threads=4) == ["4 threads, expected at most 3"]


def test_an_answer_that_is_too_long_is_wrong():
    assert wrong(AUTHOR, "Jane Austen wrote Emma, " + " ".join(f"n{n}" for n in range(50))) == [
        "54 words, expected at most 50"
    ]


def test_a_sentence_may_be_said_of_two_things_but_of_each_only_once():
    both = "The tiger is a mammal. It has four legs. The lion is a mammal. It has four legs."
    turn = ExpectedTurn("tiger, lion", things=("tiger", "lion"), facts=2)
    assert wrong(turn, both) == []
    assert wrong(turn, both + " It has four legs.") == ["repeats 'it has 4 legs.'"]


def test_an_answer_about_one_thing_says_no_five_words_twice():
    answer = "A Lovelace was a mathematician of England. She a Lovelace was a mathematician of England."
    turn = ExpectedTurn("Who was Ada Lovelace?", things=("Ada Lovelace",), facts=1)
    assert wrong(turn, answer) == ["repeats 'a lovelace was a mathematician'"]


def test_the_splits_have_fifty_conversations_of_the_same_kinds_and_none_asks_what_another_asks():
    splits = [read_conversations(split_file(split)) for split in SPLITS]
    assert [len(split) for split in splits] == [50] * len(SPLITS)
    for split in splits[1:]:
        assert [each.kind for each in split] == [each.kind for each in splits[0]]
    turns = [turn for split in splits for each in split for turn in each.turns]
    assert len({turn.user.casefold() for turn in turns}) == len(turns)
    # Of one thing the same is asked once, of several things together too.
    asked = [
        (frozenset(turn.things), turn.contains, tuple(turn.about.items()), turn.compares, turn.choice)
        for turn in turns
        if turn.things
    ]
    assert len(set(asked)) == len(asked)
