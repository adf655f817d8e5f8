"""Exercises in copying: the answer says again, in order, everything that the prompt lists."""

import random
import re

from pasta.data.atlas.corpus import atlas_answers
from pasta.data.atlas.echo import sample_echo
from pasta.lang import Document, render


def test_the_answer_repeats_the_list_in_order():
    rng = random.Random(0)
    for _ in range(300):
        prompt, document = sample_echo(rng)
        answer = render(document)
        if prompt.startswith("Copy: "):
            assert prompt == f"Copy: {answer}"
            continue
        said = [word for word in re.findall(r"\w+", answer) if re.search(rf"\b{word}\b", prompt)]
        listed = re.split(r", | and ", re.sub(r"^[^:]*: |^(List|Name) | one by one\.$|\.$", "", prompt))
        at = 0
        for word in re.findall(r"\w+", " ".join(listed)):
            at = said.index(word, at) + 1


def test_the_exercises_have_no_chunks():
    rng = random.Random(1)
    assert all(sample_echo(rng)[1].depth() == 0 for _ in range(50))


def test_a_share_of_the_documents_are_exercises():
    none, all_of_them = (
        [document.depth() > 0 for _, document in atlas_answers(0, "train", 40, echo=echo)]
        for echo in (0.0, 1.0)
    )
    assert any(none)
    assert not any(all_of_them)


def test_equal_seeds_give_equal_exercises():
    one, other = sample_echo(random.Random(3)), sample_echo(random.Random(3))
    assert one == other
    assert isinstance(one[1], Document)
