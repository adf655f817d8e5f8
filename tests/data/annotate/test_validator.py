"""Valid annotations strip to their answer, keep to the limits, and have true estimates."""

import math
from typing import Any

import pytest

from pasta.data.annotate.repair import Unrepairable
from pasta.data.annotate.validator import ChecksSection, Validator
from pasta.data.atlas import estimated, heldout_prompts
from pasta.lang import Chunk, Codec, Document, Item, Sync, Text, render, to_text
from pasta.lang.document import in_tens
from tests.support.documents import random_document
from tests.support.tokenizers import byte_level

LOOSE: dict[str, Any] = {
    "strip": "exact",
    "max_depth": 8,
    "min_chunk_tokens": 1,
    "max_chunk_tokens": 2000,
    "max_threads": 1000,
    "min_speedup": 0.0,
}


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(byte_level())


def check(codec: Codec, items: list[Item], **options: Any) -> Any:
    document = Document(tuple(items))
    return Validator(ChecksSection(**{**LOOSE, **options}), codec).check(to_text(document), render(document))


def part(text: str, *inner: Item) -> Chunk:
    return Chunk("part", 10, (Text(text), *inner))


def test_estimates_are_the_true_length_rounded_up_to_tens(codec: Codec) -> None:
    checked = check(codec, [Text("Two:"), part(" one is short."), part(" the other is longer, by far.")])
    for chunk, length in zip(checked.document.chunks(), checked.figures["chunk_tokens"], strict=True):
        assert length == len(codec.encode(Document(chunk.items)))
        assert chunk.tokens == max(math.ceil(length / 10), 1) * 10


def test_estimates_of_nested_chunks_become_true_however_large_they_are(codec: Codec) -> None:
    inner = Chunk("inner", 4000, (Text(" a part in a part"),))
    first, second = check(codec, [part("The outer part.", inner), Text(" The end.")]).document.chunks()
    assert second.items == inner.items
    assert [each.tokens for each in (first, second)] == [
        in_tens(len(codec.encode(Document(each.items)))) for each in (first, second)
    ]


def test_the_truth_of_the_atlas_passes_unchanged(codec: Codec) -> None:
    validator = Validator(ChecksSection(**LOOSE), codec)
    for task in heldout_prompts(40):
        document = estimated(task, codec).document
        checked = validator.check(to_text(task.document), task.answer)
        assert (checked.document, checked.repairs) == (document, {})


def test_any_document_comes_out_with_its_answer(codec: Codec) -> None:
    validator = Validator(ChecksSection(min_chunk_tokens=6), codec)
    for seed in range(60):
        document = random_document(seed)
        checked = validator.check(to_text(document), render(document))
        assert render(checked.document) == render(document)
        assert checked.measures.depth <= 2
        assert all(length >= 6 for length in checked.figures["chunk_tokens"])


def test_short_chunks_are_dissolved_into_their_parent(codec: Codec) -> None:
    checked = check(codec, [part("a"), part("a much longer part, worth its tags.")], min_chunk_tokens=5)
    assert [type(item) for item in checked.document.items] == [Text, Chunk]
    assert checked.repairs == {"too short, dissolved": 1}


def test_chunks_that_are_too_deep_are_dissolved(codec: Codec) -> None:
    checked = check(codec, [part("outer", part("inner", part("innermost")))], max_depth=1)
    assert checked.measures.depth == 1
    assert checked.repairs == {"too deep, dissolved": 2}


def test_chunks_that_are_too_long_are_dissolved(codec: Codec) -> None:
    checked = check(codec, [part("long " * 30), part("short enough")], max_chunk_tokens=40)
    assert [chunk.items for chunk in checked.document.chunks()] == [(Text("short enough"),)]


def test_the_shortest_chunks_above_the_number_of_threads_are_dissolved(codec: Codec) -> None:
    checked = check(codec, [part("word " * n) for n in range(1, 9)], max_threads=4)
    assert [render(Document(chunk.items)).count("word") for chunk in checked.document.chunks()] == [6, 7, 8]


def test_of_equal_chunks_above_the_number_of_threads_the_first_are_kept(codec: Codec) -> None:
    checked = check(codec, [part(f"word {n}. ") for n in range(6)], max_threads=4)
    assert [render(Document(chunk.items)) for chunk in checked.document.chunks()] == [
        "word 0. ",
        "word 1. ",
        "word 2. ",
    ]


def test_chunks_around_dissolved_ones_keep_to_the_limits(codec: Codec) -> None:
    inner = part("much longer than all that follows here")
    checked = check(codec, [part("a", inner), part("b"), part("c")], max_threads=2)
    assert len(list(checked.document.chunks())) == 1


def test_syncs_that_wait_for_nothing_are_dropped(codec: Codec) -> None:
    items = [Text("a"), Sync(), part("b"), Sync(), Sync(), Text("c"), part("d"), Sync()]
    checked = check(codec, items)
    assert [type(item) for item in checked.document.items] == [Text, Chunk, Sync, Text, Chunk]
    assert checked.repairs == {"idle sync": 3}


def test_no_chunk_is_shorter_than_asked_for_once_its_idle_syncs_are_dropped(codec: Codec) -> None:
    text = "a part of some length"
    least = len(codec.encode(Document((Text(text),)))) + 1
    checked = check(codec, [part(text, Sync()), part(f"{text}, and more")], min_chunk_tokens=least)
    assert [render(Document(chunk.items)) for chunk in checked.document.chunks()] == [f"{text}, and more"]
    assert checked.repairs == {"idle sync": 1, "too short, dissolved": 1}


def test_an_annotation_without_a_gain_is_taken_out(codec: Codec) -> None:
    checked = check(codec, [Text("Nothing follows: "), part("this.")], min_speedup=1.0)
    assert checked.document == Document((Text("Nothing follows: this."),))
    assert checked.repairs == {"no gain": 1}


def test_nesting_without_end_is_refused_with_a_reason(codec: Codec) -> None:
    depth = 3000
    text = '<promise topic="x" tokens="10"/><async>' * depth + "a" + "</async>" * depth
    with pytest.raises(Unrepairable, match="nested too deeply"):
        Validator(ChecksSection(), codec).check(text, "a")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_depth": 0}, "max_depth 0: expected a positive integer"),
        ({"max_chunk_tokens": 5}, "max_chunk_tokens 5: expected min_chunk_tokens to 2000"),
        ({"max_chunk_tokens": 2001}, "max_chunk_tokens 2001"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ChecksSection(**options)
